"""Our receiver on a real endpoint, with the official client as the reference."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from azure.eventhub import EventData
from tests.support.eventhubs import (
    address_of,
    in_loop,
    receive_with_azure_client,
    send_with_azure_client,
    source_of,
    taken,
)
from tests.support.hub import KEY, RunningHub, running_hub, until

from leasehold.azure import EventHubsSource, original_message
from leasehold.azure.amqp.messages import SECTIONS_PROPERTY, text_of
from leasehold.azure.eventhubs.credentials import Token
from leasehold.clock import SystemClock
from leasehold.errors import (
    BeyondEnd,
    ReaderDisplaced,
    StoreUnavailable,
    StoreUnusable,
    Trimmed,
    UnknownStream,
    UsageError,
)
from leasehold.events import Start

SEND: dict[str, Any] = {"group": "billing", "epoch": 1, "name": "host-a"}


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def odd_events() -> list[EventData]:
    """What the official client can send, one of each kind."""
    plain = EventData(b"plain")
    typed = EventData(b"typed")
    typed.properties = {
        "text": "x",
        "flag": True,
        "whole": 2**30,
        "part": 0.5,
        "id": UUID(int=7),
        "raw": b"\x00\xff",
    }
    named = EventData("ünïcode")
    named.message_id, named.content_type, named.correlation_id = "m-1", "text/plain", "c-1"
    return [
        plain,
        typed,
        named,
        EventData([b"two ", b"parts"]),
        EventData(b""),
        EventData(b"x" * 900_000),
    ]


def test_the_events_are_those_that_the_official_client_gets(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        send_with_azure_client(hub, odd_events(), partition_id="0")
        count = len(odd_events())
        theirs = receive_with_azure_client(hub, count)

        async def test(arrow: str) -> None:
            async with source_of(hub, arrow=arrow) as source:
                receiver = await source.receiver("0", start=Start.earliest(), **SEND)
                ours = await taken(receiver, count)
            assert [each.sequence_number for each in ours] == [
                each.sequence_number for each in theirs
            ]
            for one, other in zip(ours, theirs, strict=True):
                assert one.body == b"".join(cast("list[bytes]", other.body))
                assert str(one.offset) == other.offset
                assert one.enqueued_at is not None
                assert other.enqueued_time is not None
                assert one.enqueued_at - other.enqueued_time < timedelta(milliseconds=1)
                shown = {n: t for n, t in one.properties.items() if n != SECTIONS_PROPERTY}
                assert shown == {
                    str(name, "utf-8"): text_of(value.decode() if name == b"text" else value)
                    for name, value in cast("dict[bytes, Any]", other.properties or {}).items()
                }
            whole = original_message(ours[2].properties, ours[2].body)
            assert whole.properties[0] == "m-1"
            assert whole.properties[6] == "text/plain"
            assert original_message(ours[3].properties, ours[3].body).data == (b"two ", b"parts")

        for arrow in ("on", "off"):
            in_loop(partial(test, arrow))


def test_plain_messages_and_arrow_give_the_same_events(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        send_with_azure_client(hub, odd_events(), partition_key="k1")
        partition = next(str(number) for number in range(2) if hub.bodies(number))

        async def events(arrow: str) -> list[object]:
            async with source_of(hub, arrow=arrow) as source:
                receiver = await source.receiver(partition, start=Start.earliest(), **SEND)
                found = await taken(receiver, len(odd_events()))
            return [(e.sequence_number, e.offset, e.key, e.body, dict(e.properties)) for e in found]

        async def test() -> None:
            ours = await events("off")
            assert ours == await events("on")
            assert all(each[2] == "k1" for each in ours)  # type: ignore[index]

        in_loop(test)


@pytest.mark.parametrize("arrow", ["on", "off"])
def test_a_receiver_that_begins_within_a_millisecond_misses_no_event_of_it(
    tmp_path: Path, arrow: str
) -> None:
    with running_hub(tmp_path) as hub:
        for number in range(40):
            hub.store(b"%d" % number)
        found = hub.events()
        times = [cast("datetime", each.enqueued_at) for each in found]
        first = next(number for number, time in enumerate(times) if time.microsecond % 1000)
        at = times[first]

        async def test() -> None:
            async with source_of(hub, arrow=arrow) as source:
                receiver = await source.receiver("0", start=Start.time(at), **SEND)
                assert receiver.position <= first
                begins = times[receiver.position]
                assert begins.replace(microsecond=0) == at.replace(microsecond=0)
                assert begins.microsecond // 1000 == at.microsecond // 1000
                if arrow == "on":
                    assert receiver.position == first
                    late = at + timedelta(microseconds=1)
                    receiver = await source.receiver("0", start=Start.time(late), **SEND)
                    assert receiver.position == first + 1
                begins_with = receiver.position
                assert (await taken(receiver, 1))[0].sequence_number == begins_with

        in_loop(test)


def test_a_receiver_begins_where_it_is_told_to(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        hub.store(*bodies(5))
        clock = SystemClock()
        between = clock.utc_now() + timedelta(milliseconds=5)
        until(lambda: clock.utc_now() > between)
        hub.store(*bodies(5, 5))
        third = hub.events()[3].offset
        places = {
            Start.earliest(): 0,
            Start.latest(): 10,
            Start.sequence(4): 4,
            Start.sequence(10): 10,
            Start.offset(third): 3,
            Start.time(between): 5,
            Start.time(between - timedelta(days=1)): 0,
            Start.time(between + timedelta(days=1)): 10,
        }

        async def test() -> None:
            async with source_of(hub) as source:
                assert await source.partitions() == ("0", "1")
                ends = await source.ends(["0", "1"])
                assert [(e.first, e.next) for e in ends.values()] == [(0, 10), (0, 0)]
                for start, number in places.items():
                    receiver = await source.receiver("0", start=start, **SEND)
                    assert receiver.position == number, str(start)
                    if number < 10:
                        assert (await taken(receiver, 1))[0].body == b"%d" % number
                with pytest.raises(BeyondEnd) as told:
                    await source.receiver("0", start=Start.sequence(11), **SEND)
                assert told.value.end == 10
                with pytest.raises(BeyondEnd):
                    await source.receiver("0", start=Start.offset(10**6), **SEND)
                with pytest.raises(UsageError, match="no partition '9'"):
                    await source.receiver("9", start=Start.earliest(), **SEND)

        in_loop(test)


def test_a_receiver_that_waits_is_woken_by_an_event_and_not_before(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            async with source_of(hub) as source:
                receiver = await source.receiver("0", start=Start.latest(), **SEND)
                waiting = asyncio.create_task(taken(receiver, 1))
                await asyncio.sleep(0)
                assert not waiting.done()
                await asyncio.to_thread(hub.store, b"now")
                assert [each.body for each in await waiting] == [b"now"]

        in_loop(test)


def test_what_retention_has_removed_is_told_at_the_start_and_on_the_way(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        hub.log.create("small", partitions=1, segment_bytes=64 << 10)
        big = [bytes(30_000)] * 3

        async def test() -> None:
            async with source_of(hub, name="small") as source:
                await asyncio.to_thread(hub.store, b"first", hub="small")
                receiver = await source.receiver("0", start=Start.earliest(), **SEND)
                assert (await taken(receiver, 1))[0].body == b"first"
                await asyncio.to_thread(hub.reset_all)
                for _ in range(6):
                    await asyncio.to_thread(hub.store, *big, hub="small")
                trim = partial(hub.log.trim, "small", execute=True, keep_bytes=150 << 10)
                await asyncio.to_thread(trim)
                first = (await source.ends(["0"]))["0"].first
                assert first > 1
                with pytest.raises(Trimmed) as told:
                    await taken(receiver, 1)
                assert told.value.earliest == first
                assert receiver.position == 1
                with pytest.raises(Trimmed):
                    await source.receiver("0", start=Start.sequence(1), **SEND)
                receiver = await source.receiver("0", start=Start.earliest(), **SEND)
                assert (await taken(receiver, 1))[0].sequence_number == first

        in_loop(test)


async def reset(hub: RunningHub, source: EventHubsSource) -> None:
    """Break the connection, and return when the source knows."""
    live = await source.connection_manager.live()
    assert await asyncio.to_thread(hub.reset_all) == 1
    async with asyncio.timeout(90):
        await live.connection.ended


@pytest.mark.parametrize("arrow", ["on", "off"])
def test_a_reset_loses_nothing_and_brings_nothing_twice(tmp_path: Path, arrow: str) -> None:
    """What waited in the receiver when the connection broke is what others deliver twice."""
    with running_hub(tmp_path) as hub:
        hub.store(*bodies(300))

        async def test() -> None:
            async with source_of(hub, arrow=arrow, prefetch=100) as source:
                receiver = await source.receiver("0", start=Start.earliest(), **SEND)
                found = await taken(receiver, 10, at_once=1)
                assert receiver.link is not None
                assert receiver.link.waiting_events
                await reset(hub, source)
                found += await taken(receiver, 50, at_once=7)
                await reset(hub, source)
                await asyncio.to_thread(hub.store, *bodies(20, 300))
                found += await taken(receiver, 320 - len(found))
                assert source.connection_manager.connections == 3
            assert [each.body for each in found] == bodies(320)

        in_loop(test)


def test_a_receive_that_was_cancelled_has_not_moved(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            async with source_of(hub) as source:
                receiver = await source.receiver("0", start=Start.earliest(), **SEND)
                for _ in range(5):
                    waiting = asyncio.create_task(receiver.receive(max_events=9, max_bytes=99))
                    await asyncio.sleep(0)
                    waiting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
                    assert receiver.position == 0
                await asyncio.to_thread(hub.store, *bodies(3))
                assert [each.body for each in await taken(receiver, 3)] == bodies(3)
                assert receiver.position == 3

        in_loop(test)


def test_a_higher_epoch_takes_the_partition_and_a_lower_one_is_refused(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        hub.store(*bodies(3))

        async def test() -> None:
            async with source_of(hub) as mine, source_of(hub) as other:
                how: Any = {"start": Start.earliest(), "group": "billing"}
                old = await mine.receiver("0", epoch=4, name="old", **how)
                new = await other.receiver("0", epoch=5, name="new", **how)
                assert len(await taken(new, 3)) == 3
                with pytest.raises(ReaderDisplaced) as told:
                    await taken(old, 1)
                assert told.value.epoch == 4
                with pytest.raises(ReaderDisplaced):
                    await old.receive(max_events=1, max_bytes=1)
                with pytest.raises(ReaderDisplaced):
                    await mine.receiver("0", epoch=4, name="old", **how)
                again = await mine.receiver("0", epoch=5, name="same", **how)
                with pytest.raises(ReaderDisplaced):
                    await new.receive(max_events=1, max_bytes=1)
                assert len(await taken(again, 3)) == 3

        in_loop(test)


def test_who_is_not_let_in_is_told_what_to_do_and_no_secret(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        wrong = address_of(hub).replace(KEY, "another-key")
        missing = address_of(hub, name="missing")

        async def test() -> None:
            async with EventHubsSource(wrong) as source:
                with pytest.raises(StoreUnusable, match="does not let us in") as told:
                    await source.partitions()
                assert "another-key" not in str(told.value)
            async with EventHubsSource(missing) as source:
                with pytest.raises(UnknownStream, match="no event hub 'missing'"):
                    await source.partitions()

        in_loop(test)


def test_a_hub_that_is_not_there_is_told_when_the_patience_is_over(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        transport_closed = address_of(hub)

    async def test() -> None:
        async with EventHubsSource(transport_closed, patience=timedelta(0)) as source:
            with pytest.raises(StoreUnavailable, match="can not be used") as told:
                await source.partitions()
            assert KEY not in str(told.value)

    in_loop(test)


def test_a_receiver_or_source_that_is_closed_says_so_to_who_waits(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            source = source_of(hub)
            receivers = [await source.receiver(p, start=Start.latest(), **SEND) for p in "01"]
            waiting = [asyncio.create_task(taken(each, 1)) for each in receivers]
            await asyncio.sleep(0)
            await receivers[0].close()
            with pytest.raises(UsageError, match="closed"):
                await waiting[0]
            await source.close()
            await source.close()
            with pytest.raises(UsageError, match="closed"):
                await waiting[1]
            with pytest.raises(UsageError, match="closed"):
                await source.partitions()
            await asyncio.to_thread(until, lambda: not hub.server.connections)

        in_loop(test)


def test_resets_of_a_quiet_partition_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.azure.eventhubs.receiver._STABLE_S", 0.0)
    with running_hub(tmp_path) as hub:

        async def test() -> None:
            async with EventHubsSource(address_of(hub), patience=timedelta(0)) as source:
                receiver = await source.receiver("0", start=Start.latest(), **SEND)
                waiting = asyncio.create_task(taken(receiver, 1))
                for number in range(3):
                    old = receiver.link
                    await reset(hub, source)
                    async with asyncio.timeout(90):
                        while (new := receiver.link) is None or new is old:
                            await source.ends(["0"])
                        await asyncio.shield(new.attached)
                    assert source.connection_manager.connections == 2 + number
                await asyncio.to_thread(hub.store, b"at last")
                assert [each.body for each in await waiting] == [b"at last"]

        in_loop(test)


def test_who_waits_for_a_hub_that_is_gone_is_told_when_the_source_is_closed(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        with running_hub(tmp_path) as hub:
            source = source_of(hub)
            receiver = await source.receiver("0", start=Start.latest(), **SEND)
            live = await source.connection_manager.live()
        async with asyncio.timeout(90):
            await live.connection.ended
        waiting = asyncio.create_task(taken(receiver, 1))
        asking = asyncio.create_task(source.partitions())
        await asyncio.sleep(0)
        await source.close()
        for each in (waiting, asking):
            with pytest.raises(UsageError, match="closed"):
                await each

    in_loop(test)


def test_heartbeats_and_tokens_go_on_while_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives up on a client that is silent for twice as long as this."""
    monkeypatch.setattr("leasehold.azure.eventhubs.connection_manager._MIN_TOKEN_LIFE_S", 0.3)
    with running_hub(tmp_path, idle_timeout=timedelta(seconds=1)) as hub:

        async def test() -> None:
            async with source_of(hub) as source:
                tokens, shown = source.connection_manager._tokens, asyncio.Semaphore(0)

                async def token(audience: str) -> Token:
                    shown.release()
                    found = await tokens.token(audience)
                    return replace(found, expires_at=SystemClock().utc_now())

                source.connection_manager._tokens = SimpleNamespace(token=token)
                receiver = await source.receiver("0", start=Start.latest(), **SEND)
                async with asyncio.timeout(90):
                    for _ in range(16):  # two at the start, then each two in a third of a second
                        await shown.acquire()
                await asyncio.to_thread(hub.store, b"still here")
                assert (await taken(receiver, 1))[0].body == b"still here"
                assert source.connection_manager.connections == 1

        in_loop(test)


def test_what_waits_for_a_slow_reader_is_bounded(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        hub.store(*[bytes(10_000)] * 400)

        async def test() -> None:
            source = EventHubsSource(address_of(hub, arrow="off"), prefetch_bytes=200_000)
            async with source:
                receiver = await source.receiver("0", start=Start.earliest(), **SEND)
                link = receiver.link
                assert link is not None
                highest = 0
                for _ in range(400):
                    await taken(receiver, 1, at_once=1)
                    await asyncio.sleep(0)
                    highest = max(highest, link.waiting_bytes)
                # However slow the reader: never more than the bound, and never next to nothing.
                assert 100_000 < highest < 200_000 + 10_000
                assert receiver.position == 400

        in_loop(test)


@pytest.mark.parametrize("arrow", ["on", "off"])
def test_partitions_are_read_side_by_side(tmp_path: Path, arrow: str) -> None:
    with running_hub(tmp_path, partitions=5) as hub:
        for number in range(5):
            hub.store(*[b"%d-%d" % (number, each) for each in range(1500)], partition=number)

        async def test() -> None:
            async with source_of(hub, arrow=arrow, prefetch=64) as source:

                async def read(partition: str) -> list[bytes]:
                    receiver = await source.receiver(partition, start=Start.earliest(), **SEND)
                    return [each.body for each in await taken(receiver, 1500)]

                found = await asyncio.gather(*map(read, "01234"))
                for number, each in enumerate(found):
                    assert each == [b"%d-%d" % (number, event) for event in range(1500)]
                assert source.connection_manager.connections == 1

        in_loop(test)


def test_many_partitions_share_one_connection(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=240) as hub:

        async def test() -> None:
            async with source_of(hub) as source:
                names = await source.partitions()
                receivers = await asyncio.gather(
                    *(source.receiver(each, start=Start.latest(), **SEND) for each in names)
                )
                await asyncio.to_thread(hub.store, b"last", partition=239)
                assert (await taken(receivers[239], 1))[0].body == b"last"
                assert hub.server.connections == 1

        in_loop(test)
