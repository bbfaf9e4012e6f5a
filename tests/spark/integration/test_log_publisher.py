"""Batches for the log, committed and published without Spark, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.log_publisher import (
    GROUP,
    STREAM,
    batch_part,
    bodies,
    commit_request,
    counted,
    left_over,
    make_log,
    publisher,
    query_request,
    staged,
)
from tests.support.postgres import database

from leasehold.clock import new_token
from leasehold.errors import DataDamaged, FencedWrite, SinkChanged, UnknownStream, VolumeUnusable
from leasehold.log import Log
from leasehold.model import KeyClaim, MemberInfo
from leasehold.names import job_key
from leasehold.spark import SinkPosition
from leasehold.spark.log_writer.publisher import Publisher
from leasehold.stores import open_store


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/store.db"
        make_log(made, tmp_path)
        yield made
        return
    with database() as made:
        make_log(made, tmp_path)
        yield made


@pytest.fixture
def lite(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/store.db"
    make_log(made, tmp_path)
    return made


@pytest.fixture
def opened(url: str) -> Iterator[Publisher]:
    made = publisher(url)
    yield made
    made.close()


class Boom(Exception):
    """What a test breaks a publisher with."""


def breaking(at: str) -> object:
    def step(name: str) -> None:
        if name == at:
            raise Boom

    return step


# ------------------------------------------------------------------------- committing


@pytest.mark.spec("S4")
def test_a_batch_is_in_the_log_when_the_commit_returns(
    opened: Publisher, url: str, tmp_path: Path
) -> None:
    record = opened.commit(commit_request(batch_part("0", 0, 5)), staged(opened.plan(), "a", 50))
    assert record is not None
    assert (record.rows, record.number) == (50, 1)
    assert counted(url) == {"a": 50}
    assert left_over(tmp_path) == []


def test_events_with_one_key_stay_in_their_order(opened: Publisher, url: str) -> None:
    opened.commit(commit_request(batch_part("0", 0, 5)), staged(opened.plan(), "a", 70, tasks=3))
    opened.commit(commit_request(batch_part("0", 5, 9)), staged(opened.plan(), "b", 70, tasks=3))
    found = [each.split(":") for each in bodies(url)]
    for key in range(7):
        mine = [(name, int(number)) for name, number in found if int(number) % 7 == key]
        assert mine == sorted(mine)


@pytest.mark.spec("S4")
def test_the_same_commit_again_finds_the_first(opened: Publisher, url: str, tmp_path: Path) -> None:
    first = opened.commit(commit_request(batch_part("0", 0, 5)), staged(opened.plan(), "a", 50))
    again = opened.commit(commit_request(batch_part("0", 0, 5)), staged(opened.plan(), "a", 50))
    assert first is not None
    assert again is not None
    assert again.number == first.number
    assert counted(url) == {"a": 50}
    assert left_over(tmp_path) == []


@pytest.mark.spec("S4")
def test_a_batch_that_does_not_follow_is_refused(opened: Publisher, url: str) -> None:
    opened.commit(commit_request(batch_part("0", 0, 5)), staged(opened.plan(), "a", 10))
    for start, end in ((0, 7), (4, 9), (6, 9)):
        with pytest.raises(SinkChanged, match="up to 5 in partition 0"):
            opened.commit(
                commit_request(batch_part("0", start, end)), staged(opened.plan(), "b", 10)
            )
    assert counted(url) == {"a": 10}


@pytest.mark.spec("S4", "B5")
def test_a_batch_under_an_older_epoch_is_refused_and_counted(opened: Publisher, url: str) -> None:
    stream = opened._log.stream(STREAM)
    opened.commit(
        commit_request(batch_part("0", 0, 5), batch_part("1", 0, 3)), staged(opened.plan(), "a", 10)
    )
    known = opened.ledger.fence("sink/test", GROUP, {"1": 2, "2": 2}, stream)
    assert known == {"1": SinkPosition(position=3, epoch=1), "2": SinkPosition()}
    files = staged(opened.plan(), "b", 10)
    with pytest.raises(FencedWrite, match="epoch 2") as caught:
        opened.commit(commit_request(batch_part("0", 5, 9), batch_part("1", 3, 4)), files)
    assert caught.value.key == "1"
    assert opened.ledger.refused("sink/test") == 1
    opened.discard(files)
    opened.commit(commit_request(batch_part("1", 3, 4, epoch=2)), staged(opened.plan(), "c", 10))
    assert counted(url) == {"a": 10, "c": 10}
    # What was asked for with a lower epoch leaves the higher one.
    known = opened.ledger.fence("sink/test", GROUP, {"1": 1}, stream)
    assert known == {"1": SinkPosition(position=4, epoch=2)}
    assert opened.ledger.fence("sink/test", GROUP, {"1": 2}, stream) == known


def test_positions_are_moved_by_an_operator_under_their_epoch(opened: Publisher, url: str) -> None:
    opened.commit(commit_request(batch_part("0", 0, 5, epoch=3)), staged(opened.plan(), "a", 10))
    with pytest.raises(FencedWrite):
        opened.ledger.move("sink/test", GROUP, {"0": SinkPosition(position=2, epoch=2)})
    opened.ledger.move("sink/test", GROUP, {"0": SinkPosition(position=2, epoch=4)})
    opened.commit(commit_request(batch_part("0", 2, 5, epoch=4)), staged(opened.plan(), "b", 10))
    assert counted(url) == {"a": 10, "b": 10}


def test_a_batch_without_rows_moves_its_positions(opened: Publisher, url: str) -> None:
    opened.commit(commit_request(batch_part("0", 0, 5)), [])
    opened.commit(commit_request(batch_part("0", 5, 6)), staged(opened.plan(), "a", 1))
    assert counted(url) == {"a": 1}


# ------------------------------------------------------------------- streaming queries


@pytest.mark.spec("S4")
def test_a_replayed_batch_number_is_stored_once(opened: Publisher, url: str) -> None:
    for batch in (0, 1, 1):
        opened.commit(query_request(batch), staged(opened.plan(), f"b{batch}", 20))
    # A driver that took over replays the last batch under its own epoch.
    opened.commit(query_request(1, epoch=2), staged(opened.plan(), "again", 20))
    assert counted(url) == {"b0": 20, "b1": 20}


def test_batch_numbers_that_begin_anew_are_refused_instead_of_lost(
    opened: Publisher, url: str
) -> None:
    for batch in (0, 1, 2):
        opened.commit(query_request(batch), staged(opened.plan(), f"b{batch}", 5))
    with pytest.raises(SinkChanged, match="new or an older checkpoint"):
        opened.commit(query_request(0), staged(opened.plan(), "anew", 5))
    # With a checkpoint that is known to be another one they mean something else.
    opened.commit(query_request(0, checkpoint="new", epoch=2), staged(opened.plan(), "b3", 5))
    with pytest.raises(FencedWrite, match="epoch 2"):
        opened.commit(query_request(3, epoch=1), staged(opened.plan(), "late", 5))
    assert counted(url) == {f"b{batch}": 5 for batch in range(4)}


@pytest.mark.spec("S5", "B5")
def test_a_query_whose_key_has_another_epoch_now_writes_nothing(
    opened: Publisher, url: str
) -> None:
    key = job_key("nightly")
    epochs = asyncio.run(_held_and_lost(url, key))
    assert len(epochs) == 2
    new, old = epochs[1], epochs[0]
    held = query_request(0, fence_key=key, fence_epoch=new, epoch=new)
    opened.commit(held, staged(opened.plan(), "new", 5))
    with pytest.raises(FencedWrite, match="taken over"):
        opened.commit(
            query_request(1, fence_key=key, fence_epoch=old, epoch=old),
            staged(opened.plan(), "old", 5),
        )
    # Also where the new driver has written nothing yet.
    other = query_request(0, sink="query/other", fence_key=key, fence_epoch=old, epoch=old)
    with pytest.raises(FencedWrite, match="held by b-"):
        opened.commit(other, staged(opened.plan(), "old", 5))
    with pytest.raises(FencedWrite, match="held by nobody"):
        opened.commit(query_request(0, sink="query/x", fence_key="job/none", fence_epoch=1), [])
    assert counted(url) == {"new": 5}


async def _held_and_lost(url: str, key: str) -> list[int]:
    """The epochs of two holders of a key, the second of which still has it."""
    epochs: list[int] = []
    async with open_store(url) as store:
        await store.declare([key])
        for holder in ("a-1", "b-1"):
            lease = await store.grant(
                holder=holder,
                token=new_token(),
                group="job",
                duration=timedelta(seconds=60),
                info=MemberInfo(),
            )
            [own] = await store.claim(lease, [KeyClaim(key=key, seen_epoch=len(epochs))])
            epochs.append(own.epoch)
            if holder == "a-1":
                await store.release([own])
    return epochs


# --------------------------------------------------------------------------- finishing


@pytest.mark.spec("S4")
@pytest.mark.parametrize("at", ["staged", "committed", "sending", "sent", "published"])
def test_what_breaks_at_any_step_is_whole_or_nothing(url: str, tmp_path: Path, at: str) -> None:
    broken = publisher(url, step=breaking(at))
    with pytest.raises(Boom):
        broken.commit(query_request(0), staged(broken.plan(), "b0", 40))
    broken.close()
    after = publisher(url)
    after.commit(query_request(0), staged(after.plan(), "b0", 40))
    after.commit(query_request(1), staged(after.plan(), "b1", 40))
    after.close()
    assert counted(url) == {"b0": 40, "b1": 40}


def test_what_was_committed_is_finished_before_the_next_of_its_producer(lite: str) -> None:
    broken = publisher(lite, step=breaking("committed"))
    with pytest.raises(Boom):
        broken.commit(query_request(0), staged(broken.plan(), "b0", 40))
    broken.close()
    assert bodies(lite) == []
    after = publisher(lite)
    after.commit(query_request(1), staged(after.plan(), "b1", 40))
    after.close()
    assert counted(lite) == {"b0": 40, "b1": 40}


def test_a_new_owner_finishes_what_the_old_one_committed_of_its_partitions(lite: str) -> None:
    broken = publisher(lite, step=breaking("committed"))
    with pytest.raises(Boom):
        broken.commit(
            commit_request(batch_part("0", 0, 4), producer="old"), staged(broken.plan(), "b0", 40)
        )
    broken.close()
    after = publisher(lite)
    new = {"sink": "sink/test", "producer": "new", "group": GROUP}
    assert (
        after.publish_unfinished(**new, partitions=frozenset({"1"})) == 0
    )  # its driver may be at work on it
    assert after.publish_unfinished(**new, partitions=frozenset({"0"})) == 1
    after.close()
    assert counted(lite) == {"b0": 40}


def test_two_publishers_at_once_store_a_batch_once(url: str) -> None:
    broken = publisher(url, step=breaking("committed"))
    with pytest.raises(Boom):
        broken.commit(query_request(0), staged(broken.plan(), "b0", 3000, tasks=6))
    broken.close()
    several = [publisher(url) for _ in range(3)]
    begin = threading.Barrier(len(several))
    failed: list[BaseException] = []

    def finish(each: Publisher) -> None:
        begin.wait()
        try:
            each.commit(query_request(0), staged(each.plan(), "again", 10))
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=finish, args=(each,)) for each in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in several:
        each.close()
    assert failed == []
    assert counted(url) == {"b0": 3000}


def test_a_late_publisher_of_an_old_batch_adds_nothing(lite: str) -> None:
    broken = publisher(lite, step=breaking("committed"))
    with pytest.raises(Boom):
        broken.commit(query_request(0), staged(broken.plan(), "b0", 40))
    [old] = broken.ledger.unpublished(STREAM, sink="query/test")
    kept = {file.path: Path(file.path).read_bytes() for file in old.files}
    after = publisher(lite)
    for batch in (1, 2):
        after.commit(query_request(batch), staged(after.plan(), f"b{batch}", 40))
    for path, content in kept.items():  # as if it had opened them before it fell asleep
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content)
    broken._step = lambda _: None
    broken.finish(old)
    broken.close()
    after.close()
    assert counted(lite) == {"b0": 40, "b1": 40, "b2": 40}


def test_the_stream_may_grow_between_staging_and_publishing(lite: str) -> None:
    opened = publisher(lite)
    files = staged(opened.plan(), "a", 300)
    with Log.open(lite) as log:
        log.grow(STREAM, partitions=7)
    opened.commit(query_request(0), files)
    opened.commit(query_request(1), staged(opened.plan(), "b", 300))
    opened.close()
    assert counted(lite) == {"a": 300, "b": 300}
    with Log.open(lite) as log:
        places: dict[str, set[int]] = {}
        for number in range(7):
            with log.reader(STREAM, number) as reader:
                for batch in reader.batches():
                    for event in batch:
                        places.setdefault(str(event.key), set()).add(number)
    assert all(len(numbers) == 1 for numbers in places.values())  # both batches by the new number


# ---------------------------------------------------------------------------- bad input


def test_a_stream_that_was_made_anew_is_noticed(lite: str, tmp_path: Path) -> None:
    broken = publisher(lite, step=breaking("committed"))
    with pytest.raises(Boom):
        broken.commit(query_request(0), staged(broken.plan(), "b0", 40))
    broken.close()
    with Log.open(lite) as log:
        log.delete(STREAM)
        log.create(STREAM, partitions=2)
    after = publisher(lite)
    with pytest.raises(SinkChanged, match="made anew"):
        after.commit(query_request(1), staged(after.plan(), "b1", 5))
    after.commit(query_request(0, sink="query/new"), staged(after.plan(), "c", 5))
    assert counted(lite) == {"c": 5}
    [old] = after.ledger.unpublished(STREAM, sink="query/test")
    with pytest.raises(UnknownStream, match="gone with it"):
        after.finish(old)
    assert after.ledger.unpublished(STREAM, sink="query/test") == []
    after.close()


def test_an_unknown_stream_is_told_with_those_there_are(lite: str) -> None:
    with pytest.raises(UnknownStream, match=STREAM):
        publisher(lite, stream="nothing")


def test_a_staged_file_that_the_driver_does_not_see_is_refused_before_the_commit(
    lite: str,
) -> None:
    opened = publisher(lite)
    files = staged(opened.plan(), "a", 10)
    Path(files[0].path).unlink()
    with pytest.raises(VolumeUnusable, match="share the directory"):
        opened.commit(query_request(0), files)
    opened.commit(query_request(0), staged(opened.plan(), "b", 10))
    opened.close()
    assert counted(lite) == {"b": 10}


def test_a_staged_file_that_has_changed_is_not_sent(lite: str) -> None:
    opened = publisher(lite)
    files = staged(opened.plan(), "a", 10)
    content = bytearray(Path(files[1].path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(files[1].path).write_bytes(content)
    with pytest.raises(DataDamaged, match="not as it was staged"):
        opened.commit(query_request(0), files)
    assert bodies(lite) == []
    content[len(content) // 2] ^= 1
    Path(files[1].path).write_bytes(content)
    opened.commit(query_request(0), staged(opened.plan(), "again", 10))
    opened.close()
    assert counted(lite) == {"a": 10}


def test_a_file_that_is_gone_before_it_was_published_is_named(lite: str) -> None:
    broken = publisher(lite, step=breaking("committed"))
    files = staged(broken.plan(), "b0", 40)
    with pytest.raises(Boom):
        broken.commit(query_request(0), files)
    broken.close()
    Path(files[0].path).unlink()
    after = publisher(lite)
    with pytest.raises(VolumeUnusable, match="bring it back"):
        after.commit(query_request(1), staged(after.plan(), "b1", 5))
    after.close()


# ----------------------------------------------------------------------------- cleaning


def test_what_was_staged_and_not_committed_is_discarded(lite: str, tmp_path: Path) -> None:
    opened = publisher(lite)
    plan = opened.plan()
    files = staged(plan, "a", 10)
    staged(plan, "an attempt that nobody knows of", 10)
    opened.discard(files, plan)
    assert left_over(tmp_path) == []
    opened.close()


def test_what_is_committed_is_never_discarded(lite: str, tmp_path: Path) -> None:
    broken = publisher(lite, step=breaking("committed"))
    plan = broken.plan()
    files = staged(plan, "b0", 40)
    with pytest.raises(Boom):
        broken.commit(query_request(0), files)
    broken.discard(files, plan)
    broken.close()
    assert len(left_over(tmp_path)) == len(files)
    after = publisher(lite)
    after.commit(query_request(1), staged(after.plan(), "b1", 5))
    after.close()
    assert counted(lite) == {"b0": 40, "b1": 5}


def test_orphans_that_are_a_day_old_are_swept_by_a_commit(lite: str, tmp_path: Path) -> None:
    opened = publisher(lite)
    old, new = staged(opened.plan(), "old", 10), staged(opened.plan(), "new", 10)
    for file in old:
        made_at = Path(file.path).stat().st_mtime - timedelta(days=1, minutes=1).total_seconds()
        os.utime(file.path, (made_at, made_at))
    opened.commit(query_request(0), staged(opened.plan(), "b0", 5))
    opened.close()
    assert left_over(tmp_path) == sorted(Path(file.path) for file in new)


def test_empty_directories_that_are_a_day_old_are_swept_by_a_commit(lite: str) -> None:
    opened = publisher(lite)
    old, full, shared = opened.plan(), opened.plan(), opened.plan(shared=True)
    young, own = opened.plan(), opened.plan()
    staged(full, "young", 5)
    for each in (old, full, shared):
        made_at = (
            Path(each.directory).stat().st_mtime - timedelta(days=1, minutes=1).total_seconds()
        )
        os.utime(each.directory, (made_at, made_at))
    opened.commit(query_request(0), staged(own, "b0", 5))
    opened.close()
    there = {each.name for each in Path(old.directory).parent.iterdir()}
    assert there == {Path(each.directory).name for each in (full, shared, young)}
