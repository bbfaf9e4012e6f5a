"""Removing old segments: what goes, what stays, who holds it back, and what readers notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from tests.support.log_segments import Owner, StreamEnv, number_in, open_stream_env

from leasehold.errors import Trimmed
from leasehold.events import Event, EventBatch, Start
from leasehold.log import Log, PartitionReader, StreamSettings, TrimPlan
from leasehold.log.retention import trim
from leasehold.log.streams import segments
from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Position
from leasehold.names import partition_group, partition_key
from leasehold.stores import open_store
from leasehold.testing.clock import ManualClock

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY_S = 86400.0
Opener = Callable[..., StreamEnv]


@pytest.fixture
def make_env(tmp_path: Path) -> Iterator[Opener]:
    made: list[StreamEnv] = []

    def opened(*, retain_age_s: float = 0.0, retention_bytes: int = 0) -> StreamEnv:
        settings = StreamSettings(
            partitions=1, retain_age_s=retain_age_s, retention_bytes=retention_bytes
        )
        made.append(open_stream_env(tmp_path, settings=settings))
        return made[-1]

    yield opened
    for env in made:
        env.close()


class At(ManualClock):
    def utc_now(self) -> datetime:
        return NOW


def trimmed(env: StreamEnv, *, execute: bool = True, past_checkpoints: bool = False) -> TrimPlan:
    return trim(
        env.stream,
        files=env.files,
        catalog=env.catalog,
        clock=At(),
        execute=execute,
        past_checkpoints=past_checkpoints,
    )


def days_old(days: float) -> int:
    return int((NOW - timedelta(days=days)).timestamp()) * 1_000_000


def filled(env: StreamEnv, *ages: float, size: int = 20) -> Owner:
    """A closed segment of ten events for each age in days, and an open one of now."""
    owner = env.owner()
    for age in ages:
        owner.now_us = days_old(age)
        owner.many(5, size=size)
        owner.many(5, size=size)
        owner.roll()
    owner.now_us = days_old(0)
    owner.many(10, size=size)
    return owner


def bases(env: StreamEnv) -> list[int]:
    found = segments(env.files, env.stream.name, 0)
    return [int(status.path[-24:-4]) for status in found]


def write_checkpoint(env: StreamEnv, group: str, number: int) -> None:
    """A real group, with a lease, an ownership and a checkpoint under it."""

    async def run() -> None:
        key, name = partition_key("orders", group, "0"), partition_group("orders", group)
        async with open_store(env.url) as store:
            await store.declare([key])
            lease = await store.grant(
                holder=f"member-of-{group}",
                token="t" * 32,
                group=name,
                duration=timedelta(seconds=15),
                info=MemberInfo(),
            )
            [ownership] = await store.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
            mark = CheckpointWrite(ownership=ownership, position=Position(sequence_number=number))
            assert await store.checkpoint([mark]) == {}

    anyio.run(run)


def test_without_limits_nothing_is_removed(make_env: Opener) -> None:
    env = make_env()
    filled(env, 900, 800)

    assert trimmed(env).segments == 0
    assert bases(env) == [0, 10, 20]


def test_segments_whose_last_event_is_too_old_are_removed_from_the_oldest_on(
    make_env: Opener,
) -> None:
    env = make_env(retain_age_s=7 * DAY_S)
    filled(env, 30, 8, 6, 1)

    plan = trimmed(env)

    assert bases(env) == [20, 30, 40]
    assert (plan.segments, plan.events, plan.partitions[0].first_kept) == (2, 20, 20)
    assert plan.done
    assert plan.partitions[0].held_back == ""
    assert [number_in(e) for b in env.reader().batches() for e in b] == list(range(20, 50))
    assert trimmed(env).segments == 0


def test_the_oldest_segments_beyond_the_size_are_removed(make_env: Opener) -> None:
    env = make_env(retention_bytes=30_000)
    filled(env, 4, 3, 2, 1, size=1000)
    sizes = [status.length for status in segments(env.files, "orders", 0)]

    plan = trimmed(env)

    assert bases(env) == [30, 40]  # the third would make it more than 30,000 bytes
    assert plan.bytes == sum(sizes[:3])


def test_a_plan_alone_removes_nothing(make_env: Opener) -> None:
    env = make_env(retain_age_s=DAY_S)
    filled(env, 5, 4)

    plan = trimmed(env, execute=False)

    assert not plan.done
    assert plan.segments == 2
    assert bases(env) == [0, 10, 20]


def test_the_newest_segment_stays_however_old_it_is(make_env: Opener) -> None:
    env = make_env(retain_age_s=DAY_S, retention_bytes=1)
    owner = filled(env, 9, 8)
    owner.now_us = days_old(7)
    owner.roll()

    trimmed(env)

    assert bases(env) == [20]


def test_the_last_events_stay_while_the_newest_segment_is_empty(make_env: Opener) -> None:
    # The owner of an empty segment may die: the next one deletes it, and counts on from before.
    env = make_env(retain_age_s=DAY_S, retention_bytes=1)
    owner = filled(env, 9, 8)
    owner.now_us = days_old(7)
    owner.roll()
    owner.open()

    trimmed(env)
    assert bases(env) == [20, 30]

    heir = env.owner()
    heir.take_over()
    heir.many(1)
    assert heir.next_sequence == 31


def test_an_empty_partition_is_left_alone(make_env: Opener) -> None:
    env = make_env(retain_age_s=DAY_S)

    assert trimmed(env).partitions[0].first_kept == 0
    env.owner().open()
    assert trimmed(env).segments == 0


def test_a_group_that_is_behind_holds_back_what_it_still_needs(make_env: Opener) -> None:
    env = make_env(retain_age_s=DAY_S)
    filled(env, 9, 8, 7, 6)
    write_checkpoint(env, "audit", 35)
    write_checkpoint(env, "billing", 18)

    plan = trimmed(env)

    assert bases(env) == [10, 20, 30, 40]  # event 19 is the next one of billing
    assert plan.partitions[0].held_back == "group billing is at 18"


def test_a_group_that_has_passed_a_segment_to_its_last_event_lets_it_go(
    make_env: Opener,
) -> None:
    env = make_env(retain_age_s=DAY_S)
    filled(env, 9, 8, 7)
    write_checkpoint(env, "billing", 19)

    trimmed(env)

    assert bases(env) == [20, 30]


def test_checkpoints_are_passed_over_when_that_is_asked_for(make_env: Opener) -> None:
    env = make_env(retain_age_s=DAY_S)
    filled(env, 9, 8, 7)
    write_checkpoint(env, "billing", 3)

    plan = trimmed(env, past_checkpoints=True)

    assert bases(env) == [30]
    assert plan.partitions[0].held_back == ""


def test_a_reader_in_a_removed_segment_reads_it_to_its_end_and_is_then_told(
    make_env: Opener,
) -> None:
    env = make_env(retain_age_s=DAY_S)
    filled(env, 9, 8, 7)
    reader = env.reader()
    batch = reader.read()
    assert batch is not None

    trimmed(env)

    assert [number_in(event) for event in batch] == [0, 1, 2, 3, 4]
    rest = reader.read()
    assert rest is not None
    assert [number_in(event) for event in rest] == [5, 6, 7, 8, 9]
    with pytest.raises(Trimmed, match="the first one that is kept is 30") as reported:
        reader.read()
    reader.seek(Start.sequence(reported.value.earliest))
    assert [number_in(e) for b in reader.batches() for e in b] == list(range(30, 40))


def test_a_reader_at_the_end_of_an_open_segment_that_was_closed_and_removed_is_told(
    make_env: Opener,
) -> None:
    env = make_env(retain_age_s=DAY_S)
    owner = env.owner()
    owner.now_us = days_old(9)
    owner.many(5)
    reader = env.reader()
    assert reader.read() is not None
    owner.many(5)
    owner.roll()
    owner.now_us = days_old(0)
    owner.many(5)

    trimmed(env)

    with pytest.raises(Trimmed) as reported:
        reader.read()
    assert reported.value.earliest == 10


def test_starts_before_the_first_event_that_is_kept(make_env: Opener) -> None:
    env = make_env(retain_age_s=DAY_S)
    owner = filled(env, 9, 8)
    trimmed(env)

    for start in (Start.sequence(19), Start.offset(owner.stored[5].offset)):
        with pytest.raises(Trimmed) as reported:
            env.reader(start)
        assert reported.value.earliest == 20
    assert env.reader(Start.earliest()).position == 20
    assert env.reader(Start.time(NOW - timedelta(days=30))).position == 20
    assert env.reader(Start.sequence(20)).lag() == 10


def first_of(reader: PartitionReader) -> EventBatch:
    """The first batch there is, however often retention is faster than the reader."""
    while True:
        try:
            batch = reader.read()
        except Trimmed:
            reader.seek(Start.earliest())
        else:
            assert batch is not None
            return batch


def test_a_stream_with_limits_is_trimmed_when_a_segment_is_rolled(tmp_path: Path) -> None:
    with Log.open(f"sqlite:///{tmp_path}/log.db", volumes=[tmp_path / "v"]) as log:
        log.create("small", partitions=1, segment_bytes=64 << 10, retention_bytes=150 << 10)
        with log.producer("small") as producer:
            for _ in range(12):
                producer.send(Event(body=bytes(40 << 10))).result()
        part = log.info("small").parts[0]
        assert part.next_sequence == 12
        assert part.first_sequence > 0
        assert part.bytes < 300 << 10
        with log.reader("small", 0) as reader:
            batch = first_of(reader)
            # What is beyond the limits goes in the background: more may have gone since.
            assert batch.first_sequence >= part.first_sequence
