"""``leasehold hub`` as a process: what it prints, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.hub import RawClient, sas

from leasehold.amqp.messages import Message
from leasehold.amqp.performatives import Close, Disposition
from leasehold.log import Log, LogOptions


@contextmanager
def _running(*words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the connection string it prints."""
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("leasehold")), "hub", "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            if process.poll() is None:
                process.kill()


def test_a_hub_says_how_to_connect_and_ends_in_good_order(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with _running("--log", str(place), "--create", "orders=2") as (process, url):
        parts = dict(part.split("=", 1) for part in url.rstrip(";").split(";"))
        assert parts["UseDevelopmentEmulator"] == "true"
        port = int(parts["Endpoint"].rpartition(":")[2])
        with RawClient(port) as client:
            audience = "sb://127.0.0.1/orders"
            token = sas(audience, name=parts["SharedAccessKeyName"], key=parts["SharedAccessKey"])
            answer = client.open().put_token(token, audience)
            assert answer.application_properties["status-code"] == 202
            sender = client.attach("orders/Partitions/1", receives=False)
            client.transfer(sender.handle, Message(data=(b"kept",)).encode())
            client.wait(Disposition)
            process.send_signal(signal.SIGINT)
            client.wait(Close)
        assert process.wait(30) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "1 hub at 127.0.0.1" in said
        assert "left in good order" in said
        assert parts["SharedAccessKey"] not in said
    options = LogOptions(run_monitor=False)
    with (
        Log.open(f"sqlite:///{place / 'log.db'}", options=options) as log,
        log.reader("orders", 1) as reader,
    ):
        assert [event.body for batch in reader.batches() for event in batch] == [b"kept"]


def test_a_key_that_was_given_is_not_printed(tmp_path: Path) -> None:
    with _running("--log", str(tmp_path), LEASEHOLD_HUB_KEYS="app=very-secret") as (process, url):
        assert "SharedAccessKeyName=app;SharedAccessKey=<the key of app>;" in url
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "very-secret" not in url + out + said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--key", "no-name"], "NAME=KEY"),
        (["--key", "a;b=c"], "NAME=KEY"),
        (["--create", "orders"], "NAME=PARTITIONS"),
        (["--cert", "nothing.pem"], "can not be used"),
        (["--cert-key", "nothing.pem"], "without --cert"),
    ],
)
def test_what_is_written_wrongly_is_told(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    leasehold = CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path / 's.db'}")
    done = leasehold("hub", "--log", str(tmp_path / "d"), *words)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
