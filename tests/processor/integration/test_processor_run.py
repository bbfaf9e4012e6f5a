"""A processor as its own program: signals, and the background of a blocking program."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.processors import (
    TIMEOUT_S,
    lease_threads,
    options,
)

from leasehold.errors import (
    StoreUnusable,
)
from leasehold.events import Event
from leasehold.processor import EventProcessor, blocking
from leasehold.stores import open_store
from leasehold.testing.source import MemorySource

PROGRAM = """
import json, sys
from datetime import timedelta
from leasehold.clock import SystemClock
from leasehold.core.lease_timing import LeaseTiming
from leasehold.processor import EventProcessor, ProcessorOptions
from leasehold.testing.source import MemorySource

def say(**what):
    print(json.dumps(what), flush=True)

source = MemorySource("orders", partitions=3)
for partition in source.events:
    source.append(partition, b"a", b"b")
stuck = sys.argv[2] == "stuck"

class Later(SystemClock):
    ahead_s = 0.0

    def boottime_s(self):
        return super().boottime_s() + self.ahead_s

clock = Later()

async def on_batch(context, batch):
    if stuck:
        import asyncio
        say(event="stuck")
        await asyncio.Event().wait()

def hook(event):
    if stuck and type(event).__name__ == "PartitionDraining":
        clock.ahead_s = 1.0  # a second signal counts from here on
    if type(event).__name__ in ("CheckpointWritten", "PartitionDraining"):
        say(event=type(event).__name__, partition=event.partition)

timing = LeaseTiming.of(lease=timedelta(seconds=60), renew_interval=timedelta(seconds=0.3))
options = ProcessorOptions(timing=timing)
processor = EventProcessor(
    source, sys.argv[1], "billing", on_batch=on_batch, options=options, hooks=[hook], clock=clock
)
processor.run()
say(event="end")
"""


class Program:
    """A processor's ``run()`` in its own process."""

    def __init__(self, url: str, how: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, how], stdout=subprocess.PIPE, text=True
        )

    def until(self, event: str, times: int) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            times -= json.loads(line)["event"] == event
            if times == 0:
                return
        pytest.fail(f"ended without saying {event}")

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def end(self) -> int:
        return self._popen.wait(TIMEOUT_S)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Starts programs over one store; they are killed at the end of the test."""
    with ExitStack() as stack:

        def begun(how: str) -> Program:
            program = Program(f"sqlite:///{tmp_path}/leases.db", how)
            stack.callback(program.kill)
            return program

        yield begun


@pytest.mark.spec("P14")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.process
def test_run_leaves_in_good_order_when_it_is_told_to(
    begin: Callable[[str], Program], tmp_path: Path, number: int
) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    program = begin("normal")
    program.until("CheckpointWritten", 3)
    program.signal(number)
    program.until("end", 1)
    assert program.end() == 0

    async def look() -> None:
        async with open_store(url) as store:
            resources = (await store.resources("partition/orders/billing")).values()
            assert {each.holder for each in resources} == {None}
            assert not await store.members("partition/orders/billing")
            found = (await store.checkpoints("partition/orders/billing")).values()
            assert [each.position.sequence_number for each in found] == [1, 1, 1]

    asyncio.run(look())


@pytest.mark.spec("P14")
@pytest.mark.process
def test_signals_at_one_moment_are_one_request(begin: Callable[[str], Program]) -> None:
    program = begin("normal")
    program.until("CheckpointWritten", 3)
    program.signal(signal.SIGTERM)
    program.signal(signal.SIGINT)
    program.until("end", 1)
    assert program.end() == 0


@pytest.mark.spec("P14")
@pytest.mark.process
def test_a_second_signal_leaves_at_once(begin: Callable[[str], Program]) -> None:
    program = begin("stuck")
    program.until("stuck", 1)
    program.signal(signal.SIGTERM)
    program.until("PartitionDraining", 1)
    program.signal(signal.SIGTERM)
    assert program.end() == 128 + signal.SIGTERM


@pytest.mark.spec("P14")
def test_a_program_without_an_event_loop_runs_a_processor_in_the_background(
    tmp_path: Path,
) -> None:
    source = MemorySource("orders", partitions=2)
    source.append("0", b"a", b"b")
    url = f"sqlite:///{tmp_path}/leases.db"
    got: list[bytes] = []
    done = threading.Event()

    def on_event(context: Any, event: Event) -> None:
        got.append(event.body)
        if len(got) == 3:
            done.set()

    processor = EventProcessor(source, url, "billing", on_event=on_event, options=options())
    with blocking(processor):
        source.append("1", b"c")
        assert done.wait(TIMEOUT_S)
    assert sorted(got) == [b"a", b"b", b"c"]
    assert lease_threads() == []
    assert processor.counts().events_handled == 3
    assert processor.counts().closed == {"shutdown": 2}


def test_blocking_tells_what_start_has_to_say() -> None:
    async def on_event(context: Any, event: Event) -> None: ...

    processor = EventProcessor(MemorySource(), "sqlite:////dev/null/x.db", "g", on_event=on_event)
    with pytest.raises(StoreUnusable), blocking(processor):
        pytest.fail("it can not have been started")
    assert lease_threads() == []
