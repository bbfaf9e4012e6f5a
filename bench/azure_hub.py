"""The Event Hubs endpoint in a process of its own, over a log that is thrown away.

The process does nothing else, so its processor time is that of the endpoint. It ends with its
input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from leasehold.azure import HubOptions, HubServer
from leasehold.events import Event
from leasehold.log import Log, LogOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HUB = "hub"
BODY_BYTES = 200
_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running endpoint; ``connection`` is what clients are given."""

    connection: str
    root: Path
    process: subprocess.Popen[str]

    def cpu_s(self) -> float:
        """Processor time of the endpoint until now, of all its threads, to the nanosecond."""
        # The clock of another process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def address(self, **options: str) -> str:
        """As our source is told where it is."""
        said = "".join(f"&{name}={value}" for name, value in options.items())
        return f"eventhubs:///?connection={quote(self.connection, safe='')}{said}"

    def namespace(self) -> str:
        """As Azure's clients name it in their records: host and port."""
        return self.connection.partition("sb://")[2].partition(";")[0].rstrip("/")

    def flow(self, *, every_s: float) -> None:
        """From now on one event goes into each partition, again and again."""
        self._tell({"every_s": every_s})

    def ends(self) -> dict[int, int]:
        """Let nothing more in; gives how many events each partition has."""
        self._tell({"every_s": None})
        found: dict[str, int] = json.loads(self._line())
        return {int(partition): count for partition, count in found.items()}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _tell(self, what: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def endpoint(*, events: int = 0, partitions: int = 1) -> Iterator[Endpoint]:
    """One with so many events in its first partition."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        command = [sys.executable, "-m", "bench.azure_hub", root]
        process = subprocess.Popen(  # noqa: S603
            [*command, f"--events={events}", f"--partitions={partitions}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            assert process.stdin is not None
            try:
                line = process.stdout.readline()
                assert line, f"the endpoint ended with {process.wait()}"
                yield Endpoint(connection=json.loads(line), root=Path(root), process=process)
            finally:
                process.stdin.close()
                process.wait()


@contextmanager
def opened_log(root: Path) -> Iterator[Log]:
    options = LogOptions(run_monitor=False)
    url = f"sqlite:///{root}/log.db"
    with Log.open(url, volumes=[root / "v"], options=options) as log:
        yield log


def stored(log: Log) -> dict[int, int]:
    """How many events each partition has."""
    return {number: part.next_sequence for number, part in enumerate(log.info(HUB).parts)}


async def _serve(given: argparse.Namespace) -> None:
    with opened_log(given.root) as log:
        log.create(HUB, partitions=given.partitions)
        _fill(log, given.events)
        async with HubServer(log, HubOptions(port=0)) as server:
            print(json.dumps(server.connection_string(HUB)), flush=True)
            await asyncio.to_thread(_obey, log, given.partitions)


def _fill(log: Log, events: int) -> None:
    if events:
        sent = pa.table({"body": [bytes(BODY_BYTES)] * _ROWS})
        with log.producer(HUB) as producer:
            for _ in range(events // _ROWS):
                producer.send(sent, partition=0)


def _obey(log: Log, partitions: int) -> None:
    over = threading.Event()
    sender: threading.Thread | None = None
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        if told["every_s"] is not None:
            sender = threading.Thread(target=_flow, args=(log, partitions, told["every_s"], over))
            sender.start()
            continue
        over.set()
        if sender is not None:
            sender.join()
        print(json.dumps(stored(log)), flush=True)
    over.set()


def _flow(log: Log, partitions: int, every_s: float, over: threading.Event) -> None:
    event = Event(body=bytes(BODY_BYTES))
    with log.producer(HUB) as producer:
        while not over.wait(every_s):
            for number in range(partitions):
                producer.send(event, partition=number)


def _main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.azure_hub", description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=1)
    asyncio.run(_serve(parser.parse_args(argv)))


if __name__ == "__main__":
    _main()
