"""``leasehold hub`` as a process: what it prints, and how it ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.hub import RawClient, sas

from leasehold.azure.amqp.composites import Accepted
from leasehold.azure.amqp.messages import Message
from leasehold.azure.amqp.performatives import Close, Disposition
from leasehold.cli.hub import _allow_files
from leasehold.clock import host_name
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
    directory = tmp_path / "data"
    # All of these are names that Event Hubs allows.
    names = ["o", "Or-d_e.rs2", "o" * 256]
    words = [word for name in names for word in ("--create", f"{name}=1")]
    with _running("--log", str(directory), "--create", "orders=2", *words) as (process, url):
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
        assert process.wait(90) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "4 hubs at 127.0.0.1" in said
        assert "left in good order" in said
        assert parts["SharedAccessKey"] not in said
    assert _stored(directory, 1) == [b"kept"]
    with Log.open(
        f"sqlite:///{directory / 'log.db'}", options=LogOptions(run_monitor=False)
    ) as log:
        log.create("or ders", partitions=1)  # a log may have others
        assert {each.name for each in log.streams()} == {"orders", *names, "or ders"}


def _stored(directory: Path, partition: int) -> list[bytes]:
    options = LogOptions(run_monitor=False)
    with (
        Log.open(f"sqlite:///{directory / 'log.db'}", options=options) as log,
        log.reader("orders", partition) as reader,
    ):
        return [event.body for batch in reader.batches() for event in batch]


def test_a_hub_keeps_its_partitions_and_what_was_accepted_though_it_is_killed(
    tmp_path: Path,
) -> None:
    audience, many, directory = "sb://127.0.0.1/orders", 400, tmp_path / "data"
    directory.mkdir()
    with Log.open(f"sqlite:///{directory / 'log.db'}", volumes=[directory / "volume"]) as log:
        log.create("orders", partitions=2)
    with _running("--log", str(directory), "--create", "orders=3") as (process, url):
        parts = dict(part.split("=", 1) for part in url.rstrip(";").split(";"))
        with RawClient(int(parts["Endpoint"].rpartition(":")[2])) as client:
            token = sas(audience, name=parts["SharedAccessKeyName"], key=parts["SharedAccessKey"])
            client.open().put_token(token, audience)
            handle = client.attach("orders/Partitions/0", receives=False).handle
            accepted: set[int] = set()
            ids = {  # most of them are on their way when it is killed
                client.transfer(handle, Message(data=(b"%d" % number,)).encode()): number
                for number in range(many)
            }
            try:
                while len(accepted) < many:
                    told, _ = client.wait(Disposition)
                    assert isinstance(told.state, Accepted)
                    last = told.first if told.last is None else told.last
                    accepted |= {ids[each] for each in range(told.first, last + 1)}
                    process.kill()
            except (EOFError, ConnectionResetError):
                pass
        _, said = process.communicate(timeout=90)
    assert "orders is there with 2 partitions, and stays so" in said
    assert "Traceback" not in said
    stored = _stored(directory, 0)
    assert stored == [b"%d" % number for number in range(len(stored))]
    assert accepted
    assert {b"%d" % number for number in accepted} <= set(stored)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_hub_at_all_addresses_is_named_as_its_machine_and_prints_no_key_that_was_given(
    host: str, tmp_path: Path
) -> None:
    key = "app=very-secret"
    with _running("--log", str(tmp_path), "--host", host, LEASEHOLD_HUB_KEYS=key) as (process, url):
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=90)
        assert process.returncode == 0
    assert url.startswith(f"Endpoint=sb://{host_name()}:")
    assert f"clients are given its name, {host_name()}" in " ".join(said.split())
    assert "SharedAccessKeyName=app;SharedAccessKey=<the key of app>;" in url
    assert "very-secret" not in url + out + said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sas-key", "no-name"], "NAME=KEY"),
        (["--sas-key", "a;b=c"], "NAME=KEY"),
        (["--create", "orders"], "NAME=PARTITIONS"),
        (["--cert", "nothing.pem"], "can not be used"),
        (["--cert-key", "nothing.pem"], "without --cert"),
        (["--create", "a/b=2"], "without /"),
        (["--create", "$cbs=2"], "without /"),
        (["--create", "orders=0"], "between 1 and"),
        (["--create", "or ders=2"], "letters, digits, '.', '-' and '_', at most 256"),
        (["--create", "-orders=2"], "with a letter or digit at both ends"),
        (["--create", "orders.=2"], "with a letter or digit at both ends"),
        (["--create", "örders=2"], "with a letter or digit at both ends"),
        (["--create", f"{'o' * 257}=2"], "at most 256"),
        (["--volume", "elsewhere"], "leave --volume out"),
        (["--log", "/dev/null"], "can not be a directory"),
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


def test_a_hub_without_a_log_asks_for_one(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    done = CommandLine(monkeypatch, capfdbinary, "")("hub")
    assert done.code == 2
    assert "which log? Give --log DIR" in done.err


def test_an_address_that_can_not_be_had_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    leasehold = CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path / 's.db'}")
    done = leasehold("hub", "--log", str(tmp_path / "d"), "--host", "a..b", "--port", "0")
    assert done.code == 5
    assert "a..b:0 can not be listened at" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 4096, (3024, 4096)),
        (1024, resource.RLIM_INFINITY, (3024, resource.RLIM_INFINITY)),
        (1024, 2048, (2048, 2048)),
        (5000, 5000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_connections_leave_the_log_files_to_open(
    soft: int,
    hard: int,
    then: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    _allow_files(3024)
    assert told == ([] if then is None else [then])
    assert ("--max-connections 1024" in capsys.readouterr().err) == (hard == 2048)
