"""Hosts in their own processes, a producer that runs beside them, and the sums at the end.

Nothing here sleeps to wait: hosts print what happens, one event per line.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from tests.support.pausing import no_transaction

from leasehold.events import Event
from leasehold.log import Log, LogOptions, ProducerOptions
from leasehold.model import Checkpoint
from leasehold.names import last_part, partition_group
from leasehold.ports import Store
from leasehold.stores import open_store

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120.0
EVENTS_PER_ROUND = 5
STREAM = "orders"
GROUP = "billing"
KEYS_GROUP = partition_group(STREAM, GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One event as the handler of one host got it."""

    host: str
    partition: str
    epoch: int
    number: int
    value: int
    when_s: float


class Host:
    """One host: a process that runs ``processor_process``."""

    def __init__(
        self, host_processes: HostProcesses, settings: dict[str, Any], directory: Path
    ) -> None:
        self.name: str = settings["name"]
        self.said: list[dict[str, Any]] = []
        self._by_event: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._held: dict[str, int] = {}
        self._processes = host_processes
        self._results = Path(settings["results"]) if settings.get("results") else None
        self._errors = directory / f"{self.name}.stderr"
        command = [sys.executable, "-m", "tests.support.processor_process", json.dumps(settings)]
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
        self._reading = threading.Thread(target=self._read, name=f"reads {self.name}")
        self._reading.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def of(self, event: str, **like: object) -> list[dict[str, Any]]:
        """All that it printed of this kind."""
        return [
            each
            for each in list(self._by_event[event])
            if all(each[name] == value for name, value in like.items())
        ]

    def held(self) -> dict[str, int]:
        """The partitions that it has opened and not closed, with their epochs."""
        return dict(self._held)

    def says(self, event: str, *, times: int = 1, **like: object) -> dict[str, Any]:
        """Wait until it has printed this that many times; return the last of them."""
        what = f"{self.name} says {event} {like or ''} ({times} times)"
        self._processes.until(lambda: len(self.of(event, **like)) >= times, what)
        return self.of(event, **like)[times - 1]

    def delivered(self) -> list[Delivered]:
        """What its handler was given so far, in order."""
        notes = self.of("delivered")
        if self._results is not None and self._results.exists():
            text = self._results.read_text(encoding="utf-8")
            notes = [json.loads(line) for line in text.splitlines()]
        return [
            Delivered(host=self.name, **{k: v for k, v in each.items() if k != "event"})
            for each in notes
        ]

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill it; all that it printed before is read when this returns."""
        self._popen.kill()
        self._popen.wait(TIMEOUT_S)
        self._reading.join(TIMEOUT_S)

    def stop(self) -> None:
        """SIGSTOP; returns when it is paused."""
        with no_transaction(self._processes.url):
            self.send(signal.SIGSTOP)
            self.stopped()

    def stopped(self) -> None:
        """Wait until it is paused."""
        what = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        found = os.waitid(os.P_PID, self.pid, what)
        assert found is not None
        assert found.si_code == os.CLD_STOPPED, f"{self.name} has ended: {self.diagnosis()}"

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def limit_files(self, size: int) -> None:
        """From now on it can write no file beyond this size, as if the disk were full."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def leave(self) -> int:
        """SIGTERM; its exit code when it has ended."""
        self.send(signal.SIGTERM)
        try:
            code = self._popen.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} does not end: {self.diagnosis()}", pytrace=False)
        self._reading.join(TIMEOUT_S)
        return code

    def end(self) -> None:
        self.kill()
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def diagnosis(self) -> str:
        """Its last output, human-readable."""
        lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        notes = [each for each in self.said if each["event"] not in {"delivered", "stored"}][-15:]
        return f"\n{self.name} ({self._popen.poll()}): {notes}\n" + "\n".join(lines)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._processes.on_line(self, json.loads(line))

    def record(self, said: dict[str, Any]) -> None:
        self.said.append(said)
        self._by_event[said["event"]].append(said)
        if said["event"] == "opened":
            self._held[said["partition"]] = said["epoch"]
        elif said["event"] == "closed" and self._held.get(said["partition"]) == said["epoch"]:
            del self._held[said["partition"]]


class HostProcesses:
    """All hosts of one group, including those that were killed."""

    def __init__(self, url: str, log_url: str, log: Log, directory: Path) -> None:
        self.url = url
        self.log = log
        self.hosts: list[Host] = []
        self._log_url = log_url
        self._directory = directory
        self._changed = threading.Condition()
        self._furthest: dict[str, int] = {}

    # ------------------------------------------------------------- hosts

    def begin(self, name: str, **settings: Any) -> Host:
        """Start a host: see ``processor_process.Settings``."""
        given = {
            "log_url": self._log_url,
            "url": self.url,
            "stream": STREAM,
            "group": GROUP,
            "name": name,
            "results": str(self._directory / f"{name}.results"),
            **settings,
        }
        host = Host(self, given, self._directory)
        self.hosts.append(host)
        return host

    def on_line(self, host: Host, said: dict[str, Any]) -> None:
        """Record a line of a host, and wake the waiters."""
        with self._changed:
            host.record(said)
            # A killed host may have stored more than it could print; the next owner shows it.
            number = {"stored": "number", "opened": "position"}.get(said["event"])
            if number is not None:
                end = said[number] - (said["event"] == "opened")
                self._furthest[said["partition"]] = max(
                    self._furthest.get(said["partition"], -1), end
                )
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when the condition holds; fail with all that is known after the timeout."""
        with self._changed:
            if not self._changed.wait_for(condition, TIMEOUT_S):
                known = "\n".join(host.diagnosis() for host in self.hosts)
                pytest.fail(f"not within {TIMEOUT_S:g} s: {what}\n{known}", pytrace=False)

    def shared(self, *shares: int, hosts: list[Host] | None = None) -> None:
        """Wait until the hosts have this many partitions each, in any order."""
        among = hosts or self.hosts
        self.until(
            lambda: sorted(len(host.held()) for host in among) == sorted(shares),
            f"shares {sorted(shares)}",
        )

    def stored(self) -> None:
        """Wait until all that is in the log is handled, and stored as handled."""
        ends = {str(part.number): part.next_sequence - 1 for part in self.info().parts}

        self.until(
            lambda: all(self._furthest.get(each, -1) >= end for each, end in ends.items()),
            f"checkpoints at {ends}",
        )

    def said(self, event: str, **like: object) -> list[dict[str, Any]]:
        return [each for host in self.hosts for each in host.of(event, **like)]

    def delivered(self) -> list[Delivered]:
        """By all hosts, in the order of time."""
        notes = [each for host in self.hosts for each in host.delivered()]
        return sorted(notes, key=lambda each: each.when_s)

    def end(self) -> None:
        for host in self.hosts:
            host.end()

    # ------------------------------------------------- the log and the store

    def info(self) -> Any:
        return self.log.info(STREAM)

    def logged(self) -> dict[tuple[str, int], int]:
        """All events of the log: their values by partition and number."""
        found: dict[tuple[str, int], int] = {}
        for number in range(self.info().partitions):
            with self.log.reader(STREAM, number) as reader:
                for batch in reader.batches():
                    for event in batch:
                        found[str(number), event.sequence_number] = int(event.body)
        return found

    def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """Ask the store."""

        async def asked() -> T:
            async with open_store(self.url) as store:
                return await question(store)

        return anyio.run(asked)

    def checkpoints(self) -> dict[str, Checkpoint]:
        """By partition."""
        found: Mapping[str, Checkpoint] = self.ask(lambda store: store.checkpoints(KEYS_GROUP))
        return {last_part(key): each for key, each in found.items()}

    @contextmanager
    def producing(self, *, interval_s: float = 0.1) -> Iterator[None]:
        """Send events to all partitions, a few each round, until the end of the block."""
        stop = threading.Event()
        errors: list[BaseException] = []

        def produce() -> None:
            try:
                self._produce(stop, interval_s)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=produce, name="producer")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(TIMEOUT_S)
        assert not errors, errors

    def fill(self, rounds: int) -> None:
        """Send this many events to each partition, and wait until they are stored."""
        with self.log.producer(STREAM, QUICK) as producer:
            sent = [
                producer.send(Event(body=b"%d" % (number * 31 % 1009)), partition=partition)
                for partition in range(self.info().partitions)
                for number in range(rounds)
            ]
            for each in sent:
                each.result(TIMEOUT_S)

    def _produce(self, stop: threading.Event, interval_s: float) -> None:
        with self.log.producer(STREAM, QUICK) as producer:
            sent = []
            for number in count(1):
                partitions = self.log.stream(STREAM).partitions  # it may have grown
                values = range(number, number + EVENTS_PER_ROUND)
                sent += [
                    producer.send([Event(body=b"%d" % n) for n in values], partition=each)
                    for each in range(partitions)
                ]
                if stop.wait(interval_s):
                    break
            for each in sent:
                each.result(TIMEOUT_S)


QUICK = ProducerOptions(linger=timedelta(milliseconds=1), durable=False)


@contextmanager
def host_processes(
    log_url: str, directory: Path, *, partitions: int, url: str | None = None
) -> Iterator[HostProcesses]:
    """A stream with this many partitions and no host yet; all hosts are killed at the end."""
    options = LogOptions(run_monitor=False)
    volumes = [directory / "volume"]
    with Log.open(log_url, volumes=volumes, name="test", options=options) as log:
        log.create(STREAM, partitions=partitions)
        made = HostProcesses(url or log_url, log_url, log, directory)
        try:
            yield made
        finally:
            made.end()
