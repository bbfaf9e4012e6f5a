"""``leasehold partitions`` on real stores: plans, epochs, and exit codes."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import CommandLine
from tests.support.groups import Scene, living_members

from leasehold.cli.partitions import lease_row
from leasehold.clock import SystemClock
from leasehold.insight import GroupView, PartitionView, group_view
from leasehold.insight.groups import would_be_undone
from leasehold.model import HandOver, KeyClaim, State
from leasehold.ports import Store

ORDERS = ("orders", "billing")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(url=f"sqlite:///{tmp_path}/store.db")
    made.declare(range(3))
    return made


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], scene: Scene
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, scene.url)


def state_of(scene: Scene, partition: int) -> State:
    return scene.run(lambda store: store.resources(scene.name))[scene.key(partition)].state


# -------------------------------------------------------------------- show, history


def test_leases_show_owner_epoch_and_what_is_under_way(
    leasehold: CommandLine, scene: Scene
) -> None:
    owned = scene.join("a", 0, 1, 2)
    scene.join("b")

    async def steps(store: Store) -> None:
        await store.request_hand_over(scene.key(0), epoch=1, to="b")
        await store.hand_over([HandOver(ownership=owned[1], to="b")], limit=timedelta(minutes=1))
        await store.break_(scene.key(2), epoch=1, after=timedelta(minutes=5))

    scene.run(steps)
    rows = leasehold("partitions", "ls", *ORDERS, "-ojson").json
    assert [each["under_way"] for each in rows[:2]] == ["asked by b", "kept for b"]
    assert rows[2]["under_way"].startswith("ends within ")
    assert [each["state"] for each in rows] == ["leased", "available", "breaking"]
    table = leasehold("partitions", "ls", *ORDERS)
    assert table.widest <= 80
    assert "kept for b" in table.out


def test_one_lease_is_shown_with_all_that_is_known(leasehold: CommandLine, scene: Scene) -> None:
    scene.mark(scene.join("a", 1), 41)
    found = leasehold("partitions", "ls", *ORDERS, "1", "-ojson").json
    assert (found["owner"], found["checkpoint"], found["head"]) == ("a", 41, None)
    shown = leasehold("partitions", "ls", *ORDERS, "1").out
    assert ["head", "-"] in [line.split() for line in shown.splitlines()]
    assert ["checkpoint", "41"] in [line.split() for line in shown.splitlines()]
    titles = [line.split()[0] for line in shown.splitlines()]
    assert {"renewed", "left", "lag", "waits", "missed", "written"} <= set(titles)
    assert ["beyond_end", "no"] in [line.split() for line in shown.splitlines()]
    assert leasehold("partitions", "ls", *ORDERS, "3").code == 3


@pytest.mark.spec("B10")
def test_history_tells_who_held_a_partition_and_why_it_ended(
    leasehold: CommandLine, scene: Scene
) -> None:
    for holder in ("a", "b", "c"):
        scene.join(holder, 0)
        if holder != "c":
            scene.leave(holder)
    rows = leasehold("partitions", "history", *ORDERS, "0", "-ojsonl").jsonl
    assert [(each["epoch"], each["holder"], each["reason"]) for each in rows] == [
        (3, "c", None),
        (2, "b", "released"),
        (1, "a", "released"),
    ]
    assert rows[0]["ended_at"] is None
    assert rows[1]["lasted_s"] >= 0
    assert len(leasehold("partitions", "history", *ORDERS, "0", "-n", "1", "-ojsonl").jsonl) == 1
    table = leasehold("partitions", "history", *ORDERS, "0")
    assert table.widest <= 80
    assert leasehold("partitions", "history", *ORDERS, "9").code == 3
    assert leasehold("partitions", "history", *ORDERS, "0", "-n", "0").code == 2


# --------------------------------------------------------------------------- break


def test_break_shows_its_plan_and_does_nothing_without_execute(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0)
    done = leasehold("partitions", "break", *ORDERS, "0", "--epoch", "1")
    assert done.code == 0
    assert "nothing was done; with --execute: epoch 1 ends within 10m" in done.err
    assert "warning" not in done.err
    assert state_of(scene, 0) is State.LEASED


@pytest.mark.spec("L5")
def test_break_leaves_the_owner_its_lease_unless_it_is_told_otherwise(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0, 1)
    done = leasehold("partitions", "break", *ORDERS, "0", "--epoch", "1", "--execute")
    assert (done.code, state_of(scene, 0)) == (0, State.BREAKING)
    assert "epoch 1 ends within 10m" in done.err
    words = ("--epoch", "1", "--after", "0s", "--execute", "-ojson")
    done = leasehold("partitions", "break", *ORDERS, "1", *words)
    assert (done.code, state_of(scene, 1)) == (0, State.AVAILABLE)
    assert "warning: 0.0s is less than its lease of 10m: a may still be at work" in done.err
    assert "epoch 1 has ended" in done.err
    assert done.json["state"] == "leased"  # as it was found


def test_break_never_says_more_time_than_the_lease_has_left(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0)
    done = leasehold("partitions", "break", *ORDERS, "0", "--epoch", "1", "--after", "2h")
    assert "with --execute: epoch 1 ends within 10m" in done.err


def test_nothing_is_under_way_with_a_lease_that_was_broken() -> None:
    about: dict[str, Any] = {each.name: None for each in fields(PartitionView)}
    broken = PartitionView(**{**about, "state": State.BROKEN, "breaking_s": 0.0})
    assert lease_row(broken)["under_way"] is None
    breaking = PartitionView(**{**about, "state": State.BREAKING, "breaking_s": 5.0})
    assert lease_row(breaking)["under_way"] == "ends within 5.0s"


def test_break_of_another_epoch_exits_with_4_and_says_what_is_there_now(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0)
    scene.leave("a")
    scene.join("b", 0)
    done = leasehold("partitions", "break", *ORDERS, "0", "--epoch", "1", "--execute")
    assert (done.code, done.out) == (4, "")
    assert "epoch 1 of partition 0 is not held: now b has it in epoch 2 (leased, 10m left)" in (
        done.err.replace("\n", " ")
    )
    done = leasehold("partitions", "break", *ORDERS, "1", "--epoch", "1", "--execute")
    assert done.code == 4
    assert "now nobody has it, and its last epoch is 0" in done.err
    assert state_of(scene, 0) is State.LEASED


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("break", *ORDERS, "0"), 2, "--epoch"),
        (("break", *ORDERS, "0", "--epoch", "0"), 2, "--epoch"),
        (("break", *ORDERS, "0", "--epoch", "1", "--after", "now"), 2, "--after"),
        (("break", *ORDERS, "0", "--epoch", "1", "--after", "9000d", "--execute"), 2, "must lie"),
        (("break", *ORDERS, "7", "--epoch", "1"), 3, "no partition '7'"),
        (("ls", "orders", "shipping"), 3, "'orders' 'billing'"),
    ],
)
def test_a_wrong_command_says_what_to_do(
    leasehold: CommandLine, scene: Scene, words: tuple[str, ...], code: int, hint: str
) -> None:
    scene.join("a", 0)
    done = leasehold("partitions", *words)
    assert done.code == code
    assert hint in done.err
    assert "Traceback" not in done.err


# ---------------------------------------------------------------------------- move


def test_move_shows_its_plan_and_does_nothing_without_execute(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0)
    scene.join("b")
    done = leasehold("partitions", "move", *ORDERS, "0", "--to", "b", "-ojson")
    assert done.code == 0
    assert (done.json["owner"], done.json["to"], done.json["epoch"]) == ("a", "b", 1)
    assert "nothing was done" in done.err
    assert scene.run(lambda store: store.resources(scene.name))[scene.key(0)].asked_by is None


def test_move_asks_and_need_not_wait(leasehold: CommandLine, scene: Scene) -> None:
    scene.join("a", 0)
    scene.join("b")
    done = leasehold("partitions", "move", *ORDERS, "0", "--to", "b", "--execute", "--no-wait")
    assert done.code == 0, done.err
    assert scene.run(lambda store: store.resources(scene.name))[scene.key(0)].asked_by == "b"


def test_move_ends_with_1_when_the_owner_does_not_answer(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0)
    scene.join("b")
    words = ("--to", "b", "--execute", "--timeout", "100ms")
    done = leasehold("partitions", "move", *ORDERS, "0", *words)
    assert done.code == 1
    assert "a has yet to hand it over" in done.err
    assert "the question stands" in done.err


def test_a_move_that_the_balance_would_undo_is_warned_of(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0)
    scene.join("b", 1)
    scene.join("c", 2)
    done = leasehold("partitions", "move", *ORDERS, "0", "--to", "b")
    assert done.code == 0
    assert "warning: b would have more than its even share" in done.err


@pytest.mark.parametrize(
    ("rich", "poor", "others", "undone"),
    [
        ((0, 1), (2,), {}, False),  # 2 and 1 become 1 and 2
        ((0,), (1,), {}, False),  # 0 and 2, and the free one is for the other
        ((0,), (1, 2), {}, True),
        ((0, 1, 2), (), {}, False),
        ((0, 1), (2,), {"weight": 9.0}, False),
        ((0, 1), (2,), {"most": 1}, True),
    ],
)
def test_a_move_is_undone_if_it_gives_more_than_the_even_share(
    scene: Scene,
    rich: tuple[int, ...],
    poor: tuple[int, ...],
    others: dict[str, Any],
    undone: bool,
) -> None:
    scene.join("a", *rich)
    scene.join("b", *poor, **others)

    async def look(store: Store) -> GroupView:
        return await group_view(store, *ORDERS, now=SystemClock().utc_now())

    assert would_be_undone(scene.run(look), owner="a", to="b") is undone


@pytest.mark.spec("B3")
def test_move_waits_until_the_other_member_has_it(leasehold: CommandLine, scene: Scene) -> None:
    with living_members(scene, "one", "two"):
        rows = leasehold("partitions", "ls", *ORDERS, "-ojsonl").jsonl
        owners = [each["owner"] for each in rows]
        rich = max(owners, key=owners.count)
        poor = min(owners, key=owners.count)
        partition = str(owners.index(rich))
        words = ("--to", poor, "--execute", "--timeout", "10m")
        done = leasehold("partitions", "move", *ORDERS, partition, *words)
        assert done.code == 0, done.err
        assert f"{poor} has partition {partition}" in done.err
        terms = leasehold("partitions", "history", *ORDERS, partition, "-ojsonl").jsonl
    assert any((each["holder"], each["reason"]) == (rich, "handed_over") for each in terms)


def test_move_is_refused_where_it_can_not_be_done(leasehold: CommandLine, scene: Scene) -> None:
    scene.join("a", 0)
    scene.join("leaving", draining=True)
    move = ("partitions", "move", *ORDERS)
    done = leasehold(*move, "0", "--to", "nobody", "--execute")
    assert (done.code, "its members are a, leaving" in done.err) == (3, True)
    done = leasehold(*move, "0", "--to", "leaving", "--execute")
    assert (done.code, "choose another member" in done.err) == (4, True)
    done = leasehold(*move, "1", "--to", "a", "--execute")
    assert (done.code, "nobody owns partition 1 now" in done.err) == (4, True)
    done = leasehold(*move, "0", "--to", "a", "--execute")
    assert (done.code, "a has partition 0 already" in done.err) == (0, True)
    assert leasehold(*move, "5", "--to", "a").code == 3
    assert leasehold(*move, "0").code == 2


def test_a_move_that_went_another_way_exits_with_4(
    leasehold: CommandLine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.join("a", 0)
    scene.join("b")
    scene.join("c")
    from leasehold.stores.sqlite import SqliteStore

    request_hand_over = SqliteStore.request_hand_over

    async def and_then_stolen(self: SqliteStore, key: str, *, epoch: int, to: str) -> bool:
        stands = await request_hand_over(self, key, epoch=epoch, to=to)
        thief = await self.grant(
            holder="c",
            token="t-c",
            group=scene.name,
            duration=timedelta(minutes=10),
            info=None,  # type: ignore[arg-type]
        )
        assert await self.claim(thief, [KeyClaim(key=key, seen_epoch=epoch)], force=True)
        return stands

    monkeypatch.setattr(SqliteStore, "request_hand_over", and_then_stolen)
    done = leasehold("partitions", "move", *ORDERS, "0", "--to", "b", "--execute")
    assert done.code == 4
    assert "partition 0 went another way: now c has it in epoch 2" in done.err


@pytest.mark.parametrize("word", ["show", "list"])
def test_who_asks_for_partitions_by_another_word_is_told_what_shows_it(
    word: str, leasehold: CommandLine
) -> None:
    done = leasehold("partitions", word)
    assert done.code == 2
    assert f"No such command '{word}'. Did you mean 'ls'?" in done.err
