"""What users of other event processors complain about, each as a test (names of issues in them).

Issues are named by repository and number: ``net``, ``java``, ``js``, ``python``, ``go`` and
``rust`` are Azure's SDKs of that language.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.processors import (
    LONG_LEASE_S,
    QUICK_RETRIES,
    CuttableStore,
    HostGroup,
    host_group,
    options,
)

from leasehold.errors import CheckpointBehind, InvalidOptions, LeaseLost, PositionLost
from leasehold.events import Event, EventBatch
from leasehold.model import EndReason
from leasehold.ports import Store
from leasehold.processor import CheckpointPolicy, EventProcessor
from leasehold.processor.events import (
    CheckpointWritten,
    CycleDone,
    HandlerFailed,
    PartitionClosed,
    PartitionOpened,
    Poisoned,
    PumpRestarted,
    Stalled,
)
from leasehold.spark import PoisonPolicy
from leasehold.testing.source import MemoryReceiver, MemorySource

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=0.2)


def shares(hosts: list[EventProcessor]) -> list[int]:
    return sorted(len(host.held()) for host in hosts)


async def started(
    s: HostGroup, count: int, expected: list[int], **more: Any
) -> list[EventProcessor]:
    """Start this many hosts; return when each has its share."""
    hosts = [await s.host(f"host{number}", **more) for number in range(count)]
    await s.watch.until(lambda: shares(hosts) == expected)
    await s.watch.until(lambda: open_partitions(s) == len(s.source.events))
    return hosts


def open_partitions(s: HostGroup) -> int:
    return len(s.watch.of(PartitionOpened)) - len(s.watch.of(PartitionClosed))


async def cycles(s: HostGroup, hosts: list[EventProcessor], number: int) -> None:
    """Wait for this many more cycles of each host."""
    before = Counter(each.holder for each in s.watch.of(CycleDone))

    def done() -> bool:
        now = Counter(each.holder for each in s.watch.of(CycleDone))
        return all(now[h.holder or ""] >= before[h.holder or ""] + number for h in hosts)

    await s.watch.until(done)


class Slow:
    """A store that answers slowly."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            await anyio.sleep(self.seconds)
            return await found(*args, **named)

        return call


@pytest.mark.spec("B2", "P10")
async def test_pain_01_ownership_does_not_flap_while_nobody_comes_or_goes() -> None:
    """python#28338 (slow store), net#23956, js#15893, go#24164, net#45225."""
    async with host_group(partitions=8, events=1) as s:
        slow = Slow(s.store, 0.03)  # type: ignore[arg-type]
        hosts = await started(s, 3, [2, 3, 3], store=slow)
        before = len(s.watch.of(PartitionClosed))
        await cycles(s, hosts, 5)
        assert len(s.watch.of(PartitionClosed)) == before
        assert shares(hosts) == [2, 3, 3]


@pytest.mark.spec("P5", "P9")
async def test_pain_02_a_store_in_trouble_moves_no_partition() -> None:
    """go#22487, net#7158, js#10132: not to reach the store says nothing about the others."""
    async with host_group(partitions=4, events=1) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        hosts = await started(s, 2, [2, 2], store=link.store)
        before = len(s.watch.of(PartitionClosed))
        link.cut = True
        await cycles(s, hosts, 2)
        assert all(each.error for each in s.watch.of(CycleDone)[-2:])
        link.cut = False
        await cycles(s, hosts, 3)
        assert len(s.watch.of(PartitionClosed)) == before
        assert s.seen.twice() == []


@pytest.mark.spec("B3", "C5")
async def test_pain_03_a_rebalance_neither_doubles_events_nor_runs_two_hosts_on_one_partition() -> (
    None
):
    """net#17651, #12286, #29335; azure-docs#121643; python#38812; go#19062."""
    inside: Counter[str] = Counter()
    together: list[str] = []

    async def on_batch(context: Any, batch: EventBatch) -> None:
        inside[context.partition] += 1
        if inside[context.partition] > 1:
            together.append(context.partition)
        await asyncio.sleep(0.005)
        await s.seen.on_batch(context, batch)
        inside[context.partition] -= 1

    async with host_group(partitions=4, events=40) as s:
        setting = options(batch_events=2)
        a = await s.host("a", on_batch=on_batch, setting=setting)
        await s.seen.count(10)
        b = await s.host("b", on_batch=on_batch, setting=setting)
        await s.watch.until(lambda: (len(a.held()), len(b.held())) == (2, 2))
        s.fill(20)
        await a.stop()
        await s.seen.count(4 * 60)
        assert s.seen.twice() == []
        assert together == []


@pytest.mark.spec("B5", "L7")
async def test_pain_04_a_checkpoint_never_goes_back_and_a_former_owner_writes_none() -> None:
    """net PR #36432, java EPH PR #75, iomt-fhir PR #236, js#10311."""
    refused: list[str] = []
    contexts: list[Any] = []

    async def on_batch(context: Any, batch: EventBatch) -> None:
        contexts.append(context)
        await context.checkpoint(7)
        try:
            await context.checkpoint(3)
        except CheckpointBehind:
            refused.append("behind")

    async with host_group(events=10) as s:
        async with s.make("a", on_batch=on_batch):
            await s.watch.sees(CheckpointWritten)
        s.fill(5)
        async with s.make("b"):
            await s.watch.sees(CheckpointWritten, sequence_number=14)
            with pytest.raises(LeaseLost, match="not held here any more"):
                await contexts[0].checkpoint(9)
        assert refused == ["behind"]
        assert await s.checkpoints() == {"0": 14}


@pytest.mark.spec("B2", "P13")
async def test_pain_05_all_partitions_are_taken_in_a_few_cycles_however_many_there_are() -> None:
    """net#11989 (32 partitions, 320 s), java#13235, js#6108, net#11768, net#31941."""
    async with host_group(partitions=64) as s:
        hosts = list(await asyncio.gather(*(s.host(f"host{each}") for each in range(4))))
        await s.watch.until(lambda: shares(hosts) == [16, 16, 16, 16])
        counts = Counter(each.holder for each in s.watch.of(CycleDone))
        assert max(counts.values()) <= 8, counts


@pytest.mark.spec("B2", "P3")
async def test_pain_06_a_new_host_gets_its_share_and_nobody_starves() -> None:
    """js#6945, java#13597: members that own nothing are counted, and max - min <= 1."""
    async with host_group(partitions=5) as s:
        hosts = await started(s, 2, [2, 3])
        hosts.append(await s.host("newcomer"))
        await s.watch.until(lambda: shares(hosts) == [1, 2, 2])


@pytest.mark.spec("B4")
async def test_pain_07_a_host_with_more_weight_gets_more() -> None:
    """durabletask-netherite#107, net#11769, js#6108."""
    async with host_group(partitions=4) as s:
        small = await s.host("small")
        big = await s.host("big", setting=options(weight=3.0))
        await s.watch.until(lambda: (len(small.held()), len(big.held())) == (1, 3))


@pytest.mark.spec("B6")
async def test_pain_08_a_partition_that_silently_stops_is_found_and_opened_again() -> None:
    """python#42332, #28996, #9917; java#14652, #39367, #45369, #17983, #15164; net#42358;
    azure-event-hubs-dotnet#254."""
    async with host_group(events=2) as s:
        await s.owns(setting=options(stall_after=SOON, give_up_after=None))
        await s.seen.count(2)
        s.source.receivers[0].stuck = True
        s.fill(2)
        await s.watch.sees(Stalled)
        await s.seen.count(4)
        assert s.seen.numbers() == [0, 1, 2, 3]


@pytest.mark.spec("B6")
async def test_pain_09_a_handler_that_hangs_does_not_hold_its_partition_for_ever() -> None:
    """js#31546; azure-functions-eventhubs-extension#126."""

    async def on_event(context: Any, event: Event) -> None:
        if event.sequence_number == 1:
            await asyncio.Event().wait()
        s.seen.note(context, event)

    async with host_group(events=4) as s:
        poison = PoisonPolicy.skip(retries=0)
        await s.host(on_event=on_event, setting=options(handler_timeout=SOON, poison=poison))
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 2, 3]


@pytest.mark.spec("B6")
async def test_pain_10_a_poison_event_is_treated_by_a_policy_and_stops_no_other_partition() -> None:
    """net#18850, #29646; java#18344, #39986; azure-event-hubs-dotnet#186, #278, #172;
    spring-cloud-azure#540."""

    async def on_event(context: Any, event: Event) -> None:
        if event.body == b"0-1":
            raise ValueError("poison")
        s.seen.note(context, event)

    async with host_group(partitions=2, events=3) as s:
        poison = PoisonPolicy.stop(retries=2, pauses=QUICK_RETRIES)
        await s.host(on_event=on_event, setting=options(poison=poison))
        reported = await s.watch.sees(Poisoned)
        assert (reported.partition, reported.sequence_number, reported.action) == ("0", 1, "stop")
        await s.seen.count(4)
        assert s.seen.numbers("0") == [0]
        assert s.seen.numbers("1") == [0, 1, 2]


@pytest.mark.spec("L5", "P14")
async def test_pain_11_a_host_that_stops_frees_its_partitions_at_once() -> None:
    """rust#5096; net#51796, #8844; js#8598; durabletask-netherite#11.

    The lease is too long to wait for its end.
    """
    async with host_group(partitions=3, events=2) as s:
        long = options(lease_s=600.0)
        async with s.make("a", setting=long):
            await s.seen.count(6)
        async with s.make("b", setting=long):
            s.fill(1)
            await s.seen.count(9)
        assert s.seen.twice() == []
        reasons = {(await s.store.history(s.key(p)))[0].reason for p in "012"}  # type: ignore[union-attr]
        assert reasons == {EndReason.RELEASED}


@pytest.mark.spec("P14")
async def test_pain_12_expected_changes_of_owner_are_no_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """js#15893, python#31084, net#45225, azure-event-hubs-node PR #158."""
    caplog.set_level(logging.INFO)
    async with host_group(partitions=4, events=5) as s:
        hosts = await started(s, 3, [1, 1, 2])
        await hosts[0].stop()
        await s.watch.until(lambda: shares(hosts[1:]) == [2, 2])
        await s.seen.count(20)
        assert s.errors.received == []
    loud = [each for each in caplog.records if each.levelno >= logging.WARNING]
    ours = [each.getMessage() for each in loud if each.name.startswith("leasehold")]
    assert ours == []


@pytest.mark.spec("B7")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_pain_13_the_store_is_a_choice(kind: str, tmp_path: Path) -> None:
    """net#47799, java#13024, spring-cloud-azure#269, azure-event-hubs-dotnet#113, logstash#30."""
    store = f"sqlite:///{tmp_path}/leases.db" if kind == "sqlite" else None
    async with host_group(partitions=2, events=3, store=store) as s:
        async with s.make("a"):
            await s.seen.count(6)
        async with s.make("b"):
            s.fill(1)
            await s.seen.count(8)
        assert s.seen.twice() == []


@pytest.mark.spec("B1", "P15")
async def test_pain_14_a_host_makes_one_call_a_cycle_and_checkpoints_share_calls() -> None:
    """azure-event-hubs-dotnet#331 (10-20k requests a minute), net#9450, logstash#105, #30."""
    async with host_group(partitions=50, events=1) as s:
        interval = CheckpointPolicy.every(interval=SOON)
        host = await s.owns(setting=options(checkpoint=interval))
        await s.seen.count(50)
        await s.watch.sees(CheckpointWritten, times=50)
        assert host.counts().checkpoint_calls < 10
        seen = len(s.watch.of(CycleDone))
        await cycles(s, [host], 3)
        quiet = s.watch.of(CycleDone)[seen + 1 :]
        assert [each.calls for each in quiet] == [{"renew": 1}] * len(quiet)


@pytest.mark.spec("P12")
async def test_pain_15_a_slow_handler_holds_the_source_back_and_memory_stays_bounded() -> None:
    """python#25977, #26051, #36398; azure-event-hubs-python#58; js#25572."""
    go_on = asyncio.Event()

    async def on_batch(context: Any, batch: EventBatch) -> None:
        await go_on.wait()
        await s.seen.on_batch(context, batch)

    async with host_group(events=5000) as s:
        setting = options(batch_events=10, prefetch_events=30)
        host = await s.owns(on_batch=on_batch, setting=setting)
        await s.watch.until(lambda: host.status()[0].waiting_events >= 30)
        await cycles(s, [host], 2)
        assert host.status()[0].waiting_events <= 30 + 10
        assert s.source.receivers[0].position <= 30 + 2 * 10
        go_on.set()
        await s.seen.count(5000)
        assert s.seen.numbers() == list(range(5000))


@pytest.mark.spec("P12")
async def test_pain_16_a_checkpoint_of_a_stream_that_was_made_anew_is_reported() -> None:
    """python#30931, java#28990, orleans#7256, net#28244, net PR #48101."""
    async with host_group(events=10) as s:
        async with s.make("a"):
            await s.seen.count(10)
        s.source.events["0"].clear()
        s.fill(2)
        async with s.make("b"):
            await s.errors.count(1)
        assert isinstance(s.errors.received[0][1], PositionLost)
        assert s.seen.numbers(host="b") == []
        assert await s.checkpoints() == {"0": 9}


@pytest.mark.spec("B10")
async def test_pain_17_who_owns_what_how_far_and_since_why_can_be_asked() -> None:
    """azure-event-hubs-dotnet#361, java#19391, #19578; azure-event-hubs-java#118; net#7159."""
    async with host_group(events=4) as s:
        async with s.make("a"):
            await s.seen.count(4)
        host = await s.owns("b")
        (status,) = host.status()
        assert (status.next, status.checkpoint, status.epoch) == (4, 3, 2)
        ends = await s.source.ends(["0"])
        assert ends["0"].next - (status.next or 0) == 0
        (resource,) = (await s.store.resources(s.name)).values()  # type: ignore[union-attr]
        assert resource.holder == host.holder
        now, before = await s.store.history(s.key())  # type: ignore[union-attr]
        assert (now.holder, now.reason) == (host.holder, None)
        assert before.reason is EndReason.RELEASED
        assert before.holder.startswith("a-")


@pytest.mark.spec("C1", "C3")
async def test_pain_18_names_with_any_letters_are_found_again_as_they_were_written() -> None:
    """java#36325, go#21352, net#7783, js#5348, azure-event-hubs-java#442."""
    source = MemorySource("Bestellungen.Ä%2F neu")
    async with host_group(source=source, events=3, group="$Default") as s:
        async with s.make("a"):
            await s.seen.count(3)
        async with s.make("b"):
            s.fill(1)
            await s.seen.count(4)
        assert s.seen.twice() == []
        assert list(await s.store.groups()) == [s.name]  # type: ignore[union-attr]


@pytest.mark.spec("P14", "P5")
async def test_pain_19_a_partition_that_is_not_asked_for_more_pauses_and_stays_owned() -> None:
    """net#21469, js#15485, js#27473: in the pull style, not asking is the pause."""
    async with host_group(events=6) as s:
        setting = options(batch_events=2, prefetch_events=2)
        host = s.make(on_batch=None, setting=setting)
        async with host:
            client = await anext(host.partitions())
            first = await anext(client)
            for _ in range(5):  # in sum more than a lease
                s.clock.ahead_s += LONG_LEASE_S / 3
                await cycles(s, [host], 2)
            assert not client.context.lost
            assert s.source.receivers[0].position <= 6
            second = await anext(client)
            third = await anext(client)
            numbers = [event.sequence_number for b in (first, second, third) for event in b]
            assert numbers == [0, 1, 2, 3, 4, 5]
            assert client.epoch == 1
            stopping = asyncio.create_task(host.stop())
            with pytest.raises(StopAsyncIteration):
                await anext(client)
            await stopping
        assert await s.checkpoints() == {"0": 5}


@pytest.mark.spec("P1")
async def test_pain_20_partitions_that_are_added_are_found_while_it_runs() -> None:
    """azure-event-hubs-spark PR #544; the SDKs of Python, Java, Go and Rust read them once."""
    async with host_group(partitions=1, events=1) as s:
        await s.owns(setting=options(discovery_interval=SOON / 2))
        s.source.grow(3)
        s.fill(1)
        await s.seen.count(4)
        assert s.seen.numbers("2") == [0]


@pytest.mark.spec("E1", "E2")
async def test_pain_21_there_is_one_receiver_for_each_partition_whatever_happens() -> None:
    """net#33938, java#38117, #47502: closed before it is opened again, always with an epoch."""
    peak: Counter[str] = Counter()

    class Counting(MemorySource):
        async def receiver(self, *args: Any, **named: Any) -> MemoryReceiver:
            assert named["epoch"] >= 1
            made = await super().receiver(*args, **named)
            now = Counter(each._partition for each in self.receivers)
            peak.update({key: max(0, now[key] - peak[key]) for key in now})
            return made

    async with host_group(source=Counting("orders", partitions=2), events=2) as s:
        a = await s.owns("a")
        s.source.receivers[0].failure = OSError("broken link")
        s.fill(1)
        await s.watch.sees(PumpRestarted)
        await s.seen.count(6)
        b = await s.host("b")
        await s.watch.until(lambda: (len(a.held()), len(b.held())) == (1, 1))
        await s.watch.until(lambda: open_partitions(s) == 2)
        s.fill(1)
        await s.seen.count(8)
        assert peak == {"0": 1, "1": 1}
        assert s.seen.twice() == []


def test_pain_01_again_times_that_can_only_flap_are_refused() -> None:
    """python#28338: an expiry that one slow renewal uses up."""
    with pytest.raises(InvalidOptions, match="renew_interval"):
        options(timing=options().timing.__class__(lease_s=1.0, renew_s=0.9))


async def test_what_a_handler_fails_at_is_published_until_it_succeeds() -> None:
    repaired = anyio.Event()

    async def fail(_context: Any, batch: EventBatch) -> None:
        if not repaired.is_set():
            raise ValueError(f"cannot take {batch.first_sequence}")

    async with host_group(partitions=2) as s:
        policy = PoisonPolicy.retry(pauses=QUICK_RETRIES)
        host = await s.host("host", on_batch=fail, options=options(poison=policy))
        s.fill(3, ["1"])

        async def failing() -> dict[str, str]:
            members = await s.store.members(s.name)  # type: ignore[union-attr]
            return dict(members[host.holder or ""].info.failing)

        key = f"{s.name}/1"
        await s.watch.sees(HandlerFailed, partition="1", attempt=2)
        while not (found := await failing()):
            await cycles(s, [host], 1)
        assert list(found) == [key]
        assert re.fullmatch(r"at 0, attempt \d+", found[key])
        repaired.set()
        await s.watch.sees(CheckpointWritten, partition="1")
        while await failing():
            await cycles(s, [host], 1)
