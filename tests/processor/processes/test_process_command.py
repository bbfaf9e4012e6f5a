"""``leasehold process`` in its own processes: it handles, says what it does, and leaves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.command import CommandLine

from leasehold.events import Event
from leasehold.log import Log, LogOptions

COMMAND = str(Path(sys.executable).with_name("leasehold"))
TIMEOUT_S = 120
HANDLERS = """
import os
import threading

def handle(context, event):
    os.write(1, f"{context.partition} {event.sequence_number}\\n".encode())

def batches(context, batch):
    os.write(1, f"{context.partition} {len(batch)}\\n".encode())

def hang(context, event):
    os.write(1, b"begun\\n")
    threading.Event().wait()

def fail(context, event):
    if event.sequence_number == 1:
        raise ValueError("no ones")
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Two partitions with 3 events in each, and the handlers beside them."""
    (tmp_path / "my_handlers.py").write_text(HANDLERS)
    url = f"sqlite:///{tmp_path}/store.db"
    options = LogOptions(run_monitor=False)
    with Log.open(url, volumes=[tmp_path / "disk"], options=options) as log:
        log.create("orders", partitions=2)
        log.create("dead", partitions=1)
        with log.producer("orders") as producer:
            for partition in range(2):
                producer.send([Event(body=b"x")] * 3, partition=partition).result()
    return url


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], store: str
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, store)


class Running:
    """A processor in its own process; what it says is read line by line."""

    def __init__(self, store: str, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "process", *words, "--source", "orders", "--group", "billing"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "LEASEHOLD_STORE": store},
        )
        self.said = ""

    def until(self, words: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if words in line:
                return
        pytest.fail(f"{words!r} was not said:\n{self.said}")

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        out, said = self.process.communicate(timeout=TIMEOUT_S)
        self.said += said
        return self.process.returncode, out


@pytest.fixture
def running(store: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*words: str) -> Running:
        started.append(Running(store, tmp_path, *words))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.spec("P14", "C3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_handles_every_event_and_leaves_in_good_order(
    running: Callable[..., Running], leasehold: CommandLine, number: signal.Signals
) -> None:
    host = running("my_handlers:handle", "--checkpoint", "batch", "--lease", "2s")
    assert host.process.stdout is not None
    seen = {host.process.stdout.readline().strip() for _ in range(6)}
    assert seen == {f"{partition} {event}" for partition in range(2) for event in range(3)}
    host.until("opened partition")
    code, rest = host.end(number)
    assert (code, rest) == (0, ""), host.said
    assert "joined as host-" in host.said
    assert "closed partition 1 (epoch 1) at 3 (shutdown)" in host.said
    assert "left in good order: 6 events" in host.said
    rows = leasehold("checkpoints", "ls", "orders", "billing", "-ojson").json
    assert [each["checkpoint"] for each in rows] == [2, 2]


@pytest.mark.spec("B6")
def test_poison_goes_to_the_dead_letters(
    running: Callable[..., Running], leasehold: CommandLine
) -> None:
    words = ("--poison", "dead_letter=dead", "--retries", "0", "--lease", "2s")
    host = running("my_handlers:fail", *words)
    for _ in range(2):
        host.until("put to the dead letters")
    assert host.end(signal.SIGTERM)[0] == 0, host.said
    dead = leasehold("log", "cat", "dead", "-ojsonl").jsonl
    assert [each["properties"]["leasehold-reason"] for each in dead] == ["ValueError: no ones"] * 2
    assert "my_handlers.py" in host.said  # where it failed


@pytest.mark.spec("B6")
def test_a_handler_that_never_ends_does_not_keep_it(running: Callable[..., Running]) -> None:
    host = running("my_handlers:hang", "--drain-timeout", "100ms", "--lease", "2s")
    assert host.process.stdout is not None
    assert [host.process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    code, _ = host.end(signal.SIGTERM)
    assert code == 1, host.said
    assert "2 handlers did not end in time and cannot be stopped" in host.said


def test_batches_and_metrics(running: Callable[..., Running]) -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    host = running("my_handlers:batches", "--batch", "--metrics-port", str(port), "--lease", "2s")
    assert host.process.stdout is not None
    assert {host.process.stdout.readline().strip() for _ in range(2)} == {"0 3", "1 3"}
    with socket.create_connection(("localhost", port)) as there:
        there.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: there.recv(65536), b"")).decode()
    assert 'leasehold_batches_handled_total{group="billing"' in answer
    with pytest.raises(ConnectionRefusedError):  # another address of this machine
        socket.create_connection(("127.0.0.2", port))
    assert host.end(signal.SIGTERM)[0] == 0, host.said


def test_metrics_at_a_given_address(running: Callable[..., Running]) -> None:
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    there = ("--metrics-port", port, "--metrics-address", "127.0.0.2")
    host = running("my_handlers:handle", *there, "--lease", "2s")
    host.until(f"metrics at http://127.0.0.2:{port}/metrics")
    socket.create_connection(("127.0.0.2", int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))
    host.until("joined as")  # before that, a signal may come too early to be handled
    assert host.end(signal.SIGTERM)[0] == 0, host.said


@pytest.mark.spec("B3")
def test_an_operator_has_it_leave_and_the_other_host_goes_on(
    running: Callable[..., Running], leasehold: CommandLine
) -> None:
    one = running("my_handlers:handle", "--lease", "2s", "--holder-name", "one")
    one.until("opened partition")
    two = running("my_handlers:handle", "--lease", "2s", "--holder-name", "two", "--weight", "1.5")
    two.until("opened partition")
    members = leasehold("members", "ls", "orders", "billing", "-ojsonl").jsonl
    assert {each["holder"][:3]: each["weight"] for each in members} == {"one": 1.0, "two": 1.5}
    first = next(each["holder"] for each in members if each["holder"].startswith("one-"))
    done = leasehold("members", "drain", first, "--execute", "--timeout", "30s")
    assert done.code == 0, done.err
    assert one.process.wait(timeout=TIMEOUT_S) == 0
    two.until("opened partition")
    assert two.end(signal.SIGTERM)[0] == 0, two.said
