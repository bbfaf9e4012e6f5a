"""A log on this machine's disk, hosts in processes of their own, and what they write down."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import pyarrow as pa

from leasehold.events import Event
from leasehold.log import Log, ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

STREAM = "bench"
BODY_BYTES = 200
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An open log with one stream, and a directory for all else."""

    root: Path
    log: Log

    @property
    def url(self) -> str:
        return f"sqlite:///{self.root}/leases.db"

    def fill(self, *, partitions: int, batches: int, rows: int) -> int:
        """Put a backlog into each partition; gives the number of all events."""
        rng = random.Random(partitions)
        sent = pa.table({"body": [rng.randbytes(BODY_BYTES) for _ in range(rows)]})
        with self.log.producer(STREAM) as producer:
            for _ in range(batches):
                for number in range(partitions):
                    producer.send(sent, partition=number)
        return partitions * batches * rows

    def sent(self) -> int:
        """How many events the stream has."""
        return sum(part.next_sequence for part in self.log.info(STREAM).parts)


@contextmanager
def scene(*, partitions: int) -> Iterator[Scene]:
    """Thrown away at the end."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        log = stack.enter_context(
            Log.open(f"sqlite:///{root}/leases.db", volumes=[root / "volume"])
        )
        log.create(STREAM, partitions=partitions)
        yield Scene(root=root, log=log)


class Load:
    """A thread that sends a few events at a time, to one partition after the other."""

    def __init__(self, scene_: Scene, *, rows: int, every_s: float) -> None:
        self._scene = scene_
        self._rows = rows
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Return when all that was sent is stored. Again is harmless."""
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        events = [Event(body=bytes(BODY_BYTES)) for _ in range(self._rows)]
        with self._scene.log.producer(STREAM, ProducerOptions()) as producer:
            while not self._over.wait(self._every_s):
                producer.send(events)


@dataclass(frozen=True, slots=True)
class Notes:
    """The file in which a host writes down what it does, line by line, as it does it."""

    path: Path

    def opened(self) -> dict[tuple[int, int], float]:
        """When each partition was opened, by partition and epoch."""
        return {
            (int(words[1]), int(words[2])): float(words[3])
            for words in self._lines()
            if words[0] == "open"
        }

    def held(self) -> set[int]:
        """The partitions that are open."""
        found: set[int] = set()
        for words in self._lines():
            if words[0] == "open":
                found.add(int(words[1]))
            elif words[0] == "close":
                found.discard(int(words[1]))
        return found

    def handled(self) -> Counter[tuple[int, int]]:
        """How often each event was handled, by partition and number."""
        found: Counter[tuple[int, int]] = Counter()
        for words in self._lines():
            if words[0] == "batch":
                numbers = range(int(words[2]), int(words[3]) + 1)
                found.update((int(words[1]), number) for number in numbers)
        return found

    def _lines(self) -> list[list[str]]:
        text = self.path.read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


@dataclass(frozen=True, slots=True)
class Host:
    """A processor in a process of its own."""

    process: subprocess.Popen[str]
    notes: Notes

    def end(self) -> None:
        """In good order."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"a host ended with {code}:\n{_errors(self.notes.path).read_text()}"

    def kill(self) -> float:
        """Without any order; gives the moment."""
        self.process.kill()
        now_s = time.monotonic()
        self.process.wait()
        return now_s


@dataclass(slots=True)
class Hosts:
    """All that were started in a scene; what is left of them is killed at the end."""

    scene: Scene
    lease_s: float
    strategy: str = "even"
    all: list[Host] = field(default_factory=list)

    def start(self) -> Host:
        """One more. It has not joined yet."""
        path = self.scene.root / f"notes-{len(self.all)}"
        path.touch()
        words = ["host", self.scene.url, f"--notes={path}", f"--lease-s={self.lease_s}"]
        with _errors(path).open("w") as errors:  # what hosts log is no part of the result
            process = _started(*words, f"--strategy={self.strategy}", errors=errors)
        host = Host(process=process, notes=Notes(path))
        self.all.append(host)
        return host

    def handled(self) -> Counter[tuple[int, int]]:
        """How often each event was handled, by any of them."""
        total: Counter[tuple[int, int]] = Counter()
        for host in self.all:
            total.update(host.notes.handled())
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.all:
            _kill(host.process)


def _errors(notes: Path) -> Path:
    return notes.with_suffix(".err")


def _started(*words: str, errors: IO[str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "bench.processor_child", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()  # harmless if it has ended
    with process:  # closes its pipes, and waits for its end
        pass


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """One of the programs of ``bench.processor_child``; killed at the end."""
    process = _started(*words)
    try:
        yield process
    finally:
        _kill(process)


def told(process: subprocess.Popen[str]) -> Any:
    """The next line of a child, which is JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"a child ended with {process.wait()}"
    return json.loads(line)


def until(condition: Callable[[], bool], *, what: str) -> None:
    """Look again and again."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"after {PATIENCE_S:g} s still not: {what}")
        time.sleep(0.05)
