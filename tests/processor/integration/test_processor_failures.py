"""Failures of the source, of the store, and of the lease."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.processors import (
    LONG_LEASE_S,
    TIMEOUT_S,
    CuttableStore,
    HostGroup,
    host_group,
    lease_threads,
    options,
)

from leasehold.clock import SystemClock
from leasehold.errors import (
    LeaseLost,
    PositionLost,
    StoreUnavailable,
    StoreUnusable,
    UnknownStream,
)
from leasehold.events import Event, PartitionEnds, Start
from leasehold.processor import CloseReason, OnTrimmed, PartitionState
from leasehold.processor.events import (
    CheckpointRefused,
    CheckpointWritten,
    CycleDone,
    PartitionClosed,
    PartitionOpened,
    PositionMoved,
    PumpRestarted,
    ReceiverDisplaced,
    Stalled,
)
from leasehold.stores.memory import MemoryStore
from leasehold.testing.source import MemoryReceiver, MemorySource

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=0.2)


# ------------------------------------------------------------------ the source


@pytest.mark.spec("P11")
async def test_a_pump_whose_receiver_failed_is_begun_again_and_its_error_reported() -> None:
    async with host_group(partitions=2, events=3) as s:
        host = await s.owns()
        await s.seen.count(6)
        (broken,) = [each for each in s.source.receivers if each._partition == "0"]
        broken.failure = OSError("the disk is on fire")
        s.fill(3)
        restarted = await s.watch.sees(PumpRestarted)
        assert str(restarted.error) == "the disk is on fire"
        assert restarted.partition == "0"
        await s.seen.count(12)
        assert s.seen.numbers("0") == s.seen.numbers("1") == list(range(6))
        ((context, error),) = s.errors.received
        assert (context.partition, error) == ("0", restarted.error)
        assert host.counts().by_event["PumpRestarted"] == 1
        assert s.watch.of(PartitionClosed) == []


@pytest.mark.spec("P11")
async def test_pauses_grow_with_failures_in_a_row_and_begin_anew_after_an_event() -> None:
    async with host_group() as s:
        await s.owns()
        for number in range(3):
            s.source.receivers[0].failure = OSError("again")
            s.source.receivers[0].wake()
            await s.watch.sees(PumpRestarted, times=number + 1)
            s.fill(1)
            await s.seen.count(number + 1)
        assert max(each.pause_s for each in s.watch.of(PumpRestarted)) <= 0.1


@pytest.mark.spec("E1", "E2")
async def test_a_receiver_that_was_displaced_is_no_error() -> None:
    async with host_group(events=2) as s:
        await s.owns()
        await s.seen.count(2)
        await s.source.receiver("0", group=s.group, epoch=1, start=Start.latest(), name="other")
        await s.watch.sees(ReceiverDisplaced)
        s.fill(2)
        await s.seen.count(4)
        assert s.seen.numbers() == [0, 1, 2, 3]
        assert s.errors.received == []


@pytest.mark.spec("P12")
@pytest.mark.parametrize(
    ("setting", "first"),
    [(OnTrimmed.EARLIEST, 6), (OnTrimmed.LATEST, 9)],
    ids=str,
)
async def test_events_that_retention_removed_are_passed_over_and_told(
    setting: OnTrimmed, first: int
) -> None:
    async with host_group(events=3) as s:
        async with s.make("a"):
            await s.seen.count(3)
        s.fill(6)
        s.source.trim("0", 6)
        await s.host("b", setting=options(on_trimmed=setting))
        moved = await s.watch.sees(PositionMoved)
        assert (moved.wanted, moved.found) == (3, first)
        total = s.fill(1)
        await s.seen.count(3 + total - first)
        assert s.seen.numbers(host="b") == list(range(first, total))


@pytest.mark.spec("P12")
async def test_where_nobody_may_choose_a_trimmed_partition_is_stopped_and_reported() -> None:
    async with host_group(partitions=2, events=3) as s:
        async with s.make("a"):
            await s.seen.count(6)
        s.fill(2)
        s.source.trim("0", 4)
        async with s.make("b", setting=options(on_trimmed="fail")) as b:
            await s.errors.count(1)
            ((context, error),) = s.errors.received
            assert isinstance(error, PositionLost)
            assert "checkpoints reset" in str(error)
            assert context.partition == "0"
            await s.seen.count(8)
            states = {each.partition: each.state for each in b.status()}
            assert states["0"] is PartitionState.STOPPED
            assert len(b.held()) == 2
        assert s.seen.numbers("0", host="b") == []
        assert await s.checkpoints() == {"0": 2, "1": 4}


async def test_a_checkpoint_beyond_the_end_is_stopped_and_reported_until_it_is_reset() -> None:
    async with host_group(events=3) as s:
        store = s.store
        assert not isinstance(store, str)
        async with s.make("a"):
            await s.seen.count(3)
        s.source.events["0"].clear()  # the stream was recreated
        async with s.make("b"):
            await s.errors.count(1)
            assert isinstance(s.errors.received[0][1], PositionLost)
            assert "made anew" in str(s.errors.received[0][1])
        assert await store.reset({s.key(): None}) == {}
        s.fill(2)
        async with s.make("c"):
            await s.seen.count(5)
        assert s.seen.numbers(host="c") == [0, 1]


@pytest.mark.spec("P12")
async def test_a_group_skips_nothing_of_a_recreated_stream_that_is_longer_than_before() -> None:
    async with host_group(events=3) as s:
        store = s.store
        assert not isinstance(store, str)
        s.source.identity = "the first"
        async with s.make("a"):
            await s.seen.count(3)
        s.source.events["0"].clear()
        s.source.identity = "the second"
        s.fill(8)
        async with s.make("b"):
            await s.errors.count(1)
            error = s.errors.received[0][1]
            assert isinstance(error, PositionLost)
            assert "event 3: the stream was deleted and recreated" in str(error)
            assert "`leasehold checkpoints reset`" in str(error)
        assert (s.seen.numbers(host="b"), await s.checkpoints()) == ([], {"0": 2})
        assert await store.reset({s.key(): None}) == {}
        async with s.make("c"):
            await s.seen.count(3 + 8)
        assert s.seen.numbers(host="c") == list(range(8))
        found = await store.checkpoints(s.name)
        assert found[s.key()].position.stream == "the second"


@pytest.mark.spec("P12")
async def test_a_stream_that_is_recreated_while_a_host_reads_it_stops_the_partition() -> None:
    async with host_group(events=3) as s:
        s.source.identity = "the first"
        async with s.make("a") as a:
            await s.seen.count(3)
            (receiver,) = s.source.receivers
            s.source.identity = "the second"
            receiver.failure = OSError("the connection was cut")
            s.fill(5)
            await s.errors.count(2)
            assert isinstance(s.errors.received[-1][1], PositionLost)
            assert a.status()[0].state is PartitionState.STOPPED
        assert s.seen.numbers() == [0, 1, 2]


@pytest.mark.spec("P12")
@pytest.mark.parametrize("known", ["", "the first"])
async def test_a_checkpoint_without_an_identity_counts_and_gets_one_with_the_next_write(
    known: str,
) -> None:
    """As an older version has written it, or an older source; then as a newer one reads it."""
    async with host_group(events=3) as s:
        store = s.store
        assert not isinstance(store, str)
        s.source.identity = known
        async with s.make("a"):
            await s.seen.count(3)
        s.source.identity = "the first"
        s.fill(2)
        async with s.make("b"):
            await s.seen.count(5)
        assert s.seen.numbers(host="b") == [3, 4]
        found = await store.checkpoints(s.name)
        assert found[s.key()].position.stream == "the first"


@pytest.mark.spec("B6")
async def test_a_receiver_that_hands_out_nothing_is_opened_again() -> None:
    """From the very first event on: a partition at position 0 is not taken for an empty one."""

    class Sticky(MemorySource):
        opened = 0

        async def receiver(self, *args: Any, **named: Any) -> MemoryReceiver:
            made = await super().receiver(*args, **named)
            self.opened += 1
            made.stuck = self.opened == 1
            return made

    source = Sticky("orders")
    async with host_group(source=source, events=3) as s:
        await s.host(setting=options(stall_after=SOON, give_up_after=None))
        stalled = await s.watch.sees(Stalled)
        assert not stalled.given_up
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 1, 2]
        assert source.opened == 2
        assert {each.epoch for each in s.seen.all} == {1}


class Hanging(MemorySource):
    """A source that hangs until a receiver was asked for the fourth time.

    ``where`` it hangs: in ``receive``, or in ``receiver``; also in ``ends``, ``with_ends``.
    """

    def __init__(self, *, where: str, with_ends: bool) -> None:
        super().__init__("orders")
        self._where = where
        self._with_ends = with_ends
        self.opened = 0

    async def receiver(self, *args: Any, **named: Any) -> MemoryReceiver:
        self.opened += 1
        if self._where == "receiver" and self.opened < 4:
            await asyncio.Event().wait()
        made = await super().receiver(*args, **named)
        made.stuck = self.opened < 4
        return made

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        if self._with_ends and 1 < self.opened < 4:
            await asyncio.Event().wait()
        return await super().ends(partitions)


@pytest.mark.spec("B6", "P11")
@pytest.mark.parametrize("give_up_after", [None, SOON * 2], ids=["kept", "given up"])
@pytest.mark.parametrize("with_ends", [False, True], ids=["ends answers", "ends hangs"])
@pytest.mark.parametrize("where", ["receive", "receiver"])
async def test_a_stalled_partition_that_no_other_host_takes_is_reopened_until_events_come(
    where: str,
    with_ends: bool,
    give_up_after: timedelta | None,
) -> None:
    source = Hanging(where=where, with_ends=with_ends)
    async with host_group(source=source, events=3) as s:
        host = await s.host(setting=options(stall_after=SOON, give_up_after=give_up_after))
        await s.watch.sees(Stalled, reopened=2)
        (status,) = host.status()
        if status.reopened:  # not so late that the events have come already
            assert status.reopened >= 2
            assert status.state in (PartitionState.STALLED, PartitionState.WAITING)
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 1, 2]
        assert source.opened == 4
        assert {each.epoch for each in s.seen.all} == {1}
        assert not s.watch.of(Stalled, given_up=True)
        await s.watch.until(lambda: host.status()[0].reopened == 0)
        assert {each.reopened for each in s.watch.of(Stalled)} - {0} == {1, 2, 3}


@pytest.mark.spec("B6")
async def test_a_receiver_that_stays_stuck_is_given_up_to_another_host_and_the_cap_ends() -> None:
    class Sticky(MemorySource):
        async def receiver(self, *args: Any, **named: Any) -> MemoryReceiver:
            made = await super().receiver(*args, **named)
            made.stuck = named["name"].startswith("a-")
            return made

    async with host_group(source=Sticky("orders", partitions=2)) as s:
        setting = options(stall_after=SOON, give_up_after=SOON * 2)
        a = await s.owns("a", setting=setting)
        b = await s.host("b", setting=options())
        await s.watch.until(lambda: len(b.held()) == 1)
        mine = a.held()[0].key.rpartition("/")[2]
        s.fill(3, [mine])
        await s.watch.sees(Stalled, given_up=True, partition=mine)
        await s.watch.sees(PartitionClosed, reason=CloseReason.STALLED, partition=mine)
        await s.seen.count(3)
        assert {each.host for each in s.seen.all} == {"b"}
        await s.watch.until(lambda: len(a.held()) == 1)  # it takes its share again, after a while


async def test_a_partition_that_was_idle_for_long_is_not_taken_for_a_stuck_one() -> None:
    """An event that comes just before the watchdog checks is new: its partition is not stalled."""

    class JustInTime(MemorySource):
        looks = 0

        async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
            self.looks += 1
            if self.looks == 6:
                self.events["0"].append(b"new")  # no receiver was woken for it yet
            found = await super().ends(partitions)
            if self.looks == 7:
                self.append("0")
            return found

    source = JustInTime("orders")
    async with host_group(source=source) as s:
        setting = options(stall_after=SOON, give_up_after=SOON)
        await s.owns("a", setting=setting)
        await s.host("b", setting=setting)
        await s.seen.count(1)
        assert s.watch.of(Stalled) == []
        assert {each.host for each in s.seen.all} == {"a"}


async def test_a_source_that_can_not_be_asked_for_its_end_ends_no_pump() -> None:
    class Silent(MemorySource):
        async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
            raise OSError("no answer")

    async with host_group(source=Silent("orders"), events=2) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        await s.owns("a", store=link.store)
        link.cut = True
        s.clock.expire_leases()
        await s.owns("b", setting=options(stall_after=SOON))
        await s.errors.changed.until(
            lambda: any(isinstance(error, OSError) for _, error in s.errors.received)
        )
        s.fill(1)
        await s.seen.until(lambda: 2 in s.seen.numbers(host="b"))


# ----------------------------------------------------------- lease and store


@pytest.mark.spec("E3", "P5")
async def test_a_failed_renewal_ends_nothing_and_the_deadline_ends_all() -> None:
    async with host_group(partitions=2, events=1) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        link.only = frozenset(("renew",))
        host = await s.owns(store=link.store)
        await s.seen.count(2)
        link.cut = True
        await s.watch.until(lambda: any(each.error for each in s.watch.of(CycleDone)))
        link.cut = False
        before = len(s.watch.of(CycleDone))
        await s.watch.until(lambda: not s.watch.of(CycleDone)[-1].error)
        assert len(s.watch.of(CycleDone)) > before
        s.fill(1)
        await s.seen.count(4)
        assert {each.epoch for each in s.seen.all} == {1}
        assert s.watch.of(PartitionClosed) == []
        assert any(isinstance(error, StoreUnavailable) for _, error in s.errors.received)
        await s.watch.sees(CheckpointWritten, times=2, sequence_number=1)
        link.cut = True
        s.clock.expire_leases()
        await s.watch.sees(PartitionClosed, times=2)
        assert {e.reason for e in s.watch.of(PartitionClosed)} == {CloseReason.LOST}
        assert host.held() == []
        link.cut = False
        await s.watch.sees(PartitionOpened, times=4)
        s.fill(1)
        await s.seen.count(6)
        assert s.seen.twice() == []


@pytest.mark.spec("B5")
async def test_a_zombies_checkpoint_is_refused_by_the_store_and_counted() -> None:
    class BrokenJustBefore(MemoryStore):
        """The ownership ends when its first checkpoint is already in flight."""

        async def checkpoint(self, marks: Any) -> Any:
            await self.break_(s.key(), epoch=1, after=timedelta(0))
            return await super().checkpoint(marks)

    lost: list[LeaseLost] = []
    store = BrokenJustBefore(SystemClock())

    def on_event(context: Any, event: Event) -> None:
        s.seen.note(context, event)
        if context.epoch == 1:
            try:
                context.checkpoint(event)
            except LeaseLost as error:
                lost.append(error)
                s.seen.notify()
                raise

    async with host_group(events=2, store=store) as s:
        host = await s.host(on_event=on_event)
        await s.watch.sees(PartitionOpened, epoch=2)
        await s.seen.until(lambda: bool(lost))
        assert [each.reason for each in lost] == ["fenced"]
        assert await store.fenced_writes(s.name) == 1
        await s.watch.sees(CheckpointRefused, epoch=1, sequence_number=0)
        assert host.counts().by_event["CheckpointRefused"] == 1
        await s.seen.count(3)
        assert s.seen.numbers(epoch=1) == [0]
        assert s.seen.numbers(epoch=2) == [0, 1]
        assert s.errors.received == []


@pytest.mark.spec("B5")
async def test_a_handler_that_outlived_its_lease_finds_every_call_refused() -> None:
    go_on = asyncio.Event()
    found: dict[str, Any] = {}

    async def on_event(context: Any, event: Event) -> None:
        found["left_s"] = context.remaining_s
        link.cut = True
        s.clock.expire_leases()
        try:
            await go_on.wait()
        finally:
            found["lost"], found["after_s"] = context.lost, context.remaining_s
            with pytest.raises(LeaseLost) as caught:
                context.check()
            found["reason"] = caught.value.reason
            with pytest.raises(LeaseLost):
                await context.checkpoint(event)

    async with host_group(events=1) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        async with s.make(store=link.store, on_event=on_event):
            await s.watch.sees(CheckpointRefused)
            link.cut = False
        assert 0 < found["left_s"] < LONG_LEASE_S
        assert (found["lost"], found["after_s"]) == (True, 0.0)
        assert found["reason"] == "local_deadline"


@pytest.mark.spec("P2")
async def test_stop_ends_in_bounded_time_when_the_store_does_not_answer() -> None:
    async with host_group(partitions=2, events=1) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        host = s.make(store=link.store)
        await host.start()
        await s.seen.count(2)
        link.cut = True
        s.fill(1)
        stopping = asyncio.create_task(host.stop())
        s.clock.expire_leases()
        async with asyncio.timeout(TIMEOUT_S):
            await stopping
        assert lease_threads() == []
        assert host.status() == []


@pytest.mark.spec("P1")
async def test_a_store_that_can_not_be_used_is_told_by_start_and_no_thread_is_left(
    tmp_path: Path,
) -> None:
    path = tmp_path / "leases.db"
    path.write_text("this is no database, and long enough to be sure of that" * 100)
    async with host_group(store=f"sqlite:///{path}") as s:
        host = s.make()
        with pytest.raises(StoreUnusable):
            await host.start()
        await host.stop()
        assert lease_threads() == []


@pytest.mark.spec("P1")
async def test_a_stream_that_is_not_there_is_told_by_start_and_no_thread_is_left() -> None:
    class Gone(MemorySource):
        async def partitions(self) -> Sequence[str]:
            raise UnknownStream("there is no stream orders")

    async with host_group(source=Gone("orders")) as s:
        host = s.make()
        with pytest.raises(UnknownStream):
            await host.start()
        async with asyncio.timeout(TIMEOUT_S):
            await host.stop()
        assert lease_threads() == []


async def test_what_ends_the_leases_is_told_to_on_error_and_raised_by_stop() -> None:
    class Broken(MemoryStore):
        async def grant(self, **named: Any) -> Any:
            raise RuntimeError("a fault of the store")

    async with host_group(store=Broken(SystemClock())) as s:
        host = s.make()
        await host.start()
        await s.errors.count(1)
        assert [(c, str(e)) for c, e in s.errors.received] == [(None, "a fault of the store")]
        with pytest.raises(RuntimeError, match="a fault of the store"):
            await host.stop()
        assert lease_threads() == []


async def test_an_error_outside_any_partition_names_the_stream_and_has_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = 0

    class Away(MemorySource):
        async def partitions(self) -> Sequence[str]:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise UnknownStream("the hub is away")
            return await super().partitions()

    async with host_group(source=Away("orders", partitions=1)) as s:
        await s.host(setting=options(discovery_interval=timedelta(seconds=0.1)))
        await s.errors.count(1)
    record = next(each for each in caplog.records if "the hub is away" in each.getMessage())
    assert record.getMessage().startswith(f"orders for {s.group}: ")
    assert not record.exc_info


async def test_an_error_of_ours_in_a_partition_has_a_trace_only_if_a_handler_raised_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(MemorySource):
        async def receiver(self, *args: Any, **options: Any) -> Any:
            if not any("is away" in each for each in caplog.messages):
                raise StoreUnavailable("the source is away")
            return await super().receiver(*args, **options)

    async def handle(_context: Any, _event: Any) -> None:
        raise StoreUnavailable("the handler's store is gone")

    source = Away("orders", partitions=1)
    source.append("0", b"a")
    async with host_group(source=source) as s:
        await s.host(on_event=handle)
        await s.errors.count(2)
    away, gone = (
        next(each for each in caplog.records if words in each.getMessage())
        for words in ("is away", "is gone")
    )
    assert away.getMessage().startswith("partition 0 (epoch 1) of orders: StoreUnavailable: ")
    assert not away.exc_info
    assert gone.exc_info


async def test_a_signal_ends_one_that_waits_for_a_source_at_its_start() -> None:
    asked = asyncio.Event()

    class Silent(MemorySource):
        async def partitions(self) -> Sequence[str]:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("it never answers")

    async with host_group(source=Silent("orders")) as s:
        await _signalled(s, asked)


@pytest.mark.parametrize("how", ["answers", "fails"])
async def test_a_signal_ends_one_whose_source_does_not_let_itself_be_interrupted(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    class Stubborn(MemorySource):
        async def partitions(self) -> Sequence[str]:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if how == "fails":
                    raise ConnectionError("torn") from None
            return await super().partitions()

    async with host_group(source=Stubborn("orders", partitions=2)) as s:
        await _signalled(s, asked)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def _signalled(s: HostGroup, asked: asyncio.Event) -> None:
    """Run a processor, and end it by a signal as soon as its source is asked."""
    running = asyncio.create_task(s.make()._run())
    async with asyncio.timeout(TIMEOUT_S):
        await asked.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    assert lease_threads() == []
    loop = asyncio.get_running_loop()
    assert loop.remove_signal_handler(signal.SIGTERM)
    loop.remove_signal_handler(signal.SIGINT)
