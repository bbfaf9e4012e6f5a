"""The read models: what is known, what is not, and that looking changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from tests.support.groups import Scene

from leasehold.errors import Trimmed, UnknownResource, UsageError
from leasehold.events import Event, PartitionEnds, Start
from leasehold.insight import (
    GroupView,
    LogPositions,
    group_view,
    group_views,
    open_inspector,
    plan_reset,
)
from leasehold.insight.groups import known_groups
from leasehold.insight.inspector import RememberedEnds
from leasehold.insight.partitions import Backlog, waiting
from leasehold.log import Log, LogOptions, LogSource
from leasehold.model import Checkpoint, CheckpointWrite, HandOver, Position, State
from leasehold.names import in_order
from leasehold.ports import Store
from leasehold.testing.clock import ManualClock

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(url=f"sqlite:///{tmp_path}/store.db")


@pytest.fixture
def logged(scene: Scene, tmp_path: Path) -> Scene:
    """Two partitions of the log with 10 events in each, and a group that shares them."""
    with Log.open(scene.url, volumes=[tmp_path / "disk"], options=NO_MONITOR) as log:
        log.create("orders", partitions=2, segment_bytes=4096)
        with log.producer("orders") as producer:
            for partition in range(2):
                producer.send(events(10), partition=partition).result()
    scene.declare(range(2))
    return scene


NO_MONITOR = LogOptions(run_monitor=False)


def events(count: int) -> list[Event]:
    return [Event(body=b"%d" % number) for number in range(count)]


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(key="a/b", epoch=1, position=Position(sequence_number=number), updated_at=NOW)


class Told:
    """A source that says what it was told to say; it can not be looked into."""

    def __init__(self, **ends: tuple[int, int]) -> None:
        self._ends = {name.removeprefix("p"): each for name, each in ends.items()}

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        return {
            each: PartitionEnds(first=self._ends[each][0], next=self._ends[each][1])
            for each in partitions
            if each in self._ends
        }


def looked(scene: Scene, source: Told | None = None) -> GroupView:
    async def step(store: Store) -> GroupView:
        return await group_view(store, scene.stream, scene.group, now=NOW, source=source)

    return scene.run(step)


def on_desk(scene: Scene) -> GroupView:
    async def look() -> GroupView:
        async with open_inspector(scene.url) as inspector:
            return await inspector.group(scene.stream, scene.group)

    return anyio.run(look)


# ------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("done", "first", "following", "expected"),
    [
        (9, 0, 10, Backlog(lag_events=0, missed_events=0)),
        (4, 0, 10, Backlog(lag_events=5, missed_events=0, next_number=5)),
        (-1, 0, 10, Backlog(lag_events=10, missed_events=0, next_number=0)),
        (-1, 0, 0, Backlog(lag_events=0, missed_events=0)),
        (4, 8, 10, Backlog(lag_events=2, missed_events=3, next_number=8)),
        (4, 10, 10, Backlog(lag_events=0, missed_events=5)),
        (10, 0, 10, Backlog(beyond_end=True)),
        (None, 0, 10, Backlog()),
        (None, 0, 0, Backlog(lag_events=0)),
        (None, 10, 10, Backlog(lag_events=0)),
    ],
)
def test_what_waits_is_counted_from_the_checkpoint_to_the_end(
    done: int | None, first: int, following: int, expected: Backlog
) -> None:
    ends = PartitionEnds(first=first, next=following)
    assert waiting(None if done is None else checkpoint(done), ends) == expected


def test_without_a_source_nothing_is_known_of_what_waits() -> None:
    assert waiting(checkpoint(4), None) == Backlog()


def test_partitions_are_in_the_order_of_their_numbers_and_then_of_their_names() -> None:
    names = ["10", "b", "9", "0", "²", "a", "100"]
    assert sorted(names, key=in_order) == ["0", "9", "10", "100", "a", "b", "²"]


# -------------------------------------------------------------------------- groups


def test_a_group_shows_owners_checkpoints_and_what_waits(scene: Scene) -> None:
    scene.declare(range(11))
    owned = scene.join("a", 2, 10, weight=2.0, most=5, loads={scene.key(2): 1.5})
    scene.join("b", host="", pid=0, draining=True)
    scene.mark(owned[:1], 7)
    view = looked(scene, Told(p2=(5, 20), p10=(0, 3)))
    assert [each.partition for each in view.partitions] == [str(each) for each in range(11)]
    two, ten, free = view.partition("2"), view.partition("10"), view.partition("3")
    assert (two.state, two.owner, two.host, two.pid) == (State.LEASED, "a", "web1", 4711)
    assert (two.epoch, two.checkpoint, two.checkpoint_epoch) == (1, 7, 1)
    assert (two.first, two.head, two.lag_events, two.missed_events) == (5, 19, 12, 0)
    assert two.lag_s is None  # nobody looked into the events
    assert two.renewed_ago_s is not None
    assert two.time_left_s is not None
    assert two.renewed_ago_s + two.time_left_s == pytest.approx(600, abs=0.01)
    assert (ten.checkpoint, ten.head, ten.lag_events, ten.lag_s) == (None, 2, None, None)
    assert (free.owner, free.host, free.time_left_s, free.held_by) == (None, None, None, None)
    assert free.head is None
    a, b = view.members
    assert (a.holder, a.keys, a.weight, a.max_partitions, a.load, a.leaving) == (
        "a",
        2,
        2.0,
        5,
        1.5,
        False,
    )
    assert (b.host, b.pid, b.keys, b.load, b.leaving) == (None, None, 0, None, True)
    assert (view.owned, view.spread, view.lag_events, view.lag_s) == (2, 0, None, None)


def test_the_lag_of_a_group_is_known_only_if_that_of_each_partition_is(scene: Scene) -> None:
    scene.declare(range(2))
    scene.mark(scene.join("a", 0), 4)
    assert looked(scene, Told(p0=(0, 10), p1=(0, 0))).lag_events == 5
    assert looked(scene, Told(p0=(0, 10), p1=(0, 1))).lag_events is None
    assert looked(scene, Told(p0=(0, 5), p1=(0, 0))).lag_s == 0.0
    assert looked(scene).lag_events is None


def test_a_lease_that_has_ended_leaves_its_owner_with_no_time(scene: Scene) -> None:
    scene.declare(range(1))

    clock = ManualClock()
    scene.join("a", 0, lease=timedelta(seconds=10), clock=clock)
    clock.advance(11.0)

    async def step(store: Store) -> GroupView:
        return await group_view(store, scene.stream, scene.group, now=NOW)

    view = scene.run(step, clock=clock)
    part = view.partition("0")
    assert (part.state, part.owner, part.time_left_s) == (State.EXPIRED, "a", 0.0)
    assert (part.held_by, part.host, view.members, view.owned) == (None, None, (), 0)
    assert view.spread is None


def test_a_key_that_was_handed_over_is_kept_by_its_receiver(scene: Scene) -> None:
    scene.declare(range(1))
    owned = scene.join("a", 0)
    scene.join("b")
    hand_over = HandOver(ownership=owned[0], to="b")
    scene.run(lambda store: store.hand_over([hand_over], limit=timedelta(minutes=1)))
    part = looked(scene).partition("0")
    assert (part.state, part.handed_to, part.held_by) == (State.AVAILABLE, "b", "b")


def test_looking_changes_no_version(scene: Scene) -> None:
    scene.declare(range(2))
    scene.join("a", 0)
    before = scene.run(lambda store: store.resources(scene.name))
    looked(scene)
    on_desk(scene)
    assert scene.run(lambda store: store.resources(scene.name)) == before


def test_what_is_not_there_is_named_beside_what_is(scene: Scene) -> None:
    scene.declare(range(12))
    scene.join("a")
    view = looked(scene)
    with pytest.raises(UnknownResource, match="it has 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"):
        view.partition("12")
    with pytest.raises(UnknownResource, match="its members are a"):
        view.member("b")
    with pytest.raises(UnknownResource, match="it has 'orders' 'billing'"):
        looked(Scene(url=scene.url, group="shipping"))


def test_groups_are_found_by_their_names_and_jobs_are_none_of_them(scene: Scene) -> None:
    odd = Scene(url=scene.url, stream="a/b c", group="π [red]")
    odd.declare(range(1))
    scene.declare(range(1))
    scene.run(lambda store: store.declare(["job/nightly", "partition/x/y/z/0"]))

    async def step(store: Store) -> tuple[Sequence[tuple[str, str]], Sequence[GroupView]]:
        return await known_groups(store), await group_views(store, now=NOW)

    names, views = scene.run(step)
    assert names == [("a/b c", "π [red]"), ("orders", "billing")]
    assert [(each.stream, each.group) for each in views] == names


# ------------------------------------------------------------------------- the log


def test_the_log_tells_heads_and_how_long_the_oldest_event_waits(logged: Scene) -> None:
    logged.mark(logged.join("a", 0), 3)
    view = on_desk(logged)
    part, other = view.partitions
    assert (part.first, part.head, part.lag_events) == (0, 9, 6)
    assert part.lag_s is not None
    assert 0 <= part.lag_s < 60
    assert (other.checkpoint, other.head, other.lag_events, other.lag_s) == (None, 9, None, None)


def test_a_checkpoint_of_a_stream_that_was_recreated_has_no_lag(logged: Scene) -> None:
    (owned,) = logged.join("a", 0)
    position = Position(sequence_number=3, stream="another one")
    mark = CheckpointWrite(ownership=owned, position=position)
    assert not logged.run(lambda store: store.checkpoint([mark]))
    part, _ = on_desk(logged).partitions
    assert (part.checkpoint, part.lag_events, part.lag_s, part.beyond_end) == (3, None, None, True)


def test_a_look_takes_no_partition_from_its_reader(logged: Scene) -> None:
    logged.mark(logged.join("a", 0, 1), 3)
    with Log.open(logged.url, options=NO_MONITOR) as log:
        reader = log.reader("orders", 0, group="billing", epoch=1)
        view = on_desk(logged)
        assert view.lag_events == 12
        assert len(list(reader.batches())) == 1  # not stolen


def test_a_stream_of_another_place_has_no_heads(logged: Scene) -> None:
    elsewhere = Scene(url=logged.url, stream="eventhub")
    elsewhere.declare(range(2))
    elsewhere.mark(elsewhere.join("a", 0), 3)
    part = on_desk(elsewhere).partition("0")
    assert (part.checkpoint, part.head, part.lag_events) == (3, None, None)


def test_a_store_without_a_log_works_as_well() -> None:
    async def look() -> Sequence[GroupView]:
        async with open_inspector("memory://") as inspector:
            await inspector.store.declare(["partition/orders/billing/0"])
            assert await inspector.positions("orders") is None
            assert inspector.failure == ""
            return await inspector.groups()

    (view,) = anyio.run(look)
    assert view.lag_events is None


def test_a_partition_that_the_stream_does_not_have_has_no_head(logged: Scene) -> None:
    logged.declare(["7", "x"])
    heads = {each.partition: each.head for each in on_desk(logged).partitions}
    assert heads == {"0": 9, "1": 9, "7": None, "x": None}


# -------------------------------------------------------------------------- resets


def planned(
    scene: Scene, to: str | None, *partitions: str
) -> list[tuple[str, int | None, int | None, int | None, int | None]]:
    async def plan() -> list[tuple[str, int | None, int | None, int | None, int | None]]:
        async with open_inspector(scene.url) as inspector:
            view = await inspector.group(scene.stream, scene.group)
            positions = await inspector.positions(scene.stream)
            start = None if to is None else Start.parse(to)
            found = await plan_reset(view, to=start, positions=positions, partitions=partitions)
            assert set(found.positions) == {each.key for each in found.partitions}
            identity = ""
            if positions is not None:
                async with LogSource.open(scene.url, scene.stream) as source:
                    identity = await source.stream_identity()
            assert {each.stream for each in found.positions.values() if each} <= {identity}
            return [
                (each.partition, each.now, each.then, each.again, each.skipped)
                for each in found.partitions
            ]

    return anyio.run(plan)


def test_a_reset_says_what_comes_again_and_what_is_skipped(logged: Scene) -> None:
    logged.mark(logged.join("a", 0), 3)
    assert planned(logged, "earliest") == [("0", 4, 0, 4, 0), ("1", None, 0, None, None)]
    assert planned(logged, "latest", "0") == [("0", 4, 10, 0, 6)]
    assert planned(logged, "seq:4", "0") == [("0", 4, 4, 0, 0)]
    assert planned(logged, "2000-01-01T00:00:00Z", "0", "0") == [("0", 4, 0, 4, 0)]
    assert planned(logged, "2100-01-01T00:00:00Z", "0") == [("0", 4, 10, 0, 6)]
    assert planned(logged, "offset:0", "1", "0")[1] == ("0", 4, 0, 4, 0)
    assert planned(logged, None, "0") == [("0", 4, None, None, None)]


def test_a_place_that_is_not_there_is_refused_with_its_partition(logged: Scene) -> None:
    with pytest.raises(UsageError, match=r"partition 0: .*11"):
        planned(logged, "seq:11")
    with pytest.raises(UnknownResource, match="no partition '2'"):
        planned(logged, "earliest", "2")


def test_what_retention_removed_can_not_come_again(logged: Scene) -> None:
    with Log.open(logged.url, options=NO_MONITOR) as log, log.producer("orders") as producer:
        for _ in range(3):
            producer.send([Event(body=bytes(4000))], partition=0).result()
        logged.mark(logged.join("a", 0), 12)
        log.trim("orders", execute=True, keep_bytes=1)
    first = on_desk(logged).partition("0").first
    assert first
    assert planned(logged, "earliest", "0") == [("0", 13, first, 13 - first, 0)]
    with pytest.raises(Trimmed, match="partition 0: "):
        planned(logged, "seq:0", "0")


def test_without_a_log_only_a_number_can_be_found(scene: Scene) -> None:
    scene.declare(range(1))
    scene.mark(scene.join("a", 0), 9)
    assert planned(scene, "seq:4") == [("0", 10, 4, 6, 0)]
    assert planned(scene, None) == [("0", 10, None, None, None)]
    with pytest.raises(UsageError, match="use seq:N"):
        planned(scene, "latest")


def test_places_leave_out_what_can_not_be_read(logged: Scene) -> None:
    async def look(log: Log) -> Mapping[str, datetime]:
        positions = LogPositions(log, "orders")
        return await positions.enqueued_at({"0": 9, "1": 10, "2": 0, "x": 0})

    with Log.open(logged.url, options=NO_MONITOR) as log:
        assert set(anyio.run(look, log)) == {"0"}


def test_ends_are_remembered_for_one_look_at_many_groups() -> None:
    asked: list[str] = []

    class Counting(Told):
        async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
            asked.extend(partitions)
            return await super().ends(partitions)

    async def look() -> list[set[str]]:
        source = RememberedEnds(Counting(p0=(0, 1), p1=(0, 2)))
        wanted = (["0", "9"], ["0", "1", "9"], ["1"])
        return [set(await source.ends(each)) for each in wanted]

    assert anyio.run(look) == [{"0"}, {"0", "1"}, {"1"}]
    assert asked == ["0", "9", "1"]


def test_a_desk_needs_no_log_to_look_at_leases(logged: Scene) -> None:
    async def look() -> GroupView:
        async with open_inspector(logged.url) as inspector:
            return await inspector.group("orders", "billing", lags=False)

    assert anyio.run(look).partition("0").head is None


def test_a_volume_that_is_away_is_said_and_the_rest_is_shown(logged: Scene, tmp_path: Path) -> None:
    logged.mark(logged.join("a", 0), 3)
    (tmp_path / "disk").rename(tmp_path / "away")

    async def look() -> tuple[GroupView, str]:
        async with open_inspector(logged.url) as inspector:
            view = await inspector.group("orders", "billing")
            return view, inspector.failure

    view, failure = anyio.run(look)
    assert view.partition("0").checkpoint == 3
    assert view.partition("0").lag_events is None
    assert "disk" in failure
