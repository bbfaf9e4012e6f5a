"""``leasehold groups`` and ``members`` on real stores: what they print, and their exit codes."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest
from tests.support.command import CommandLine
from tests.support.groups import Scene, living_members
from tests.support.postgres import database

from leasehold import open_store
from leasehold.cli import tables
from leasehold.events import Event
from leasehold.log import Log, LogOptions
from leasehold.model import Lease

GROUP_KEYS = {
    "stream",
    "group",
    "partition_count",
    "owned",
    "member_count",
    "spread",
    "lag_events",
    "fenced_writes",
}
PART_KEYS = {
    "partition",
    "key",
    "state",
    "owner",
    "host",
    "pid",
    "epoch",
    "renewed_ago_s",
    "time_left_s",
    "checkpoint",
    "checkpointed_at",
    "first",
    "head",
    "lag_events",
    "lag_s",
    "handed_to",
    "asked_by",
    "failing",
}
GROUP_TITLES = ["stream", "group", "parts", "owned", "members", "spread", "lag", "fenced"]
PART_TITLES = [
    *("part", "state", "owner", "host", "epoch", "renewed", "left"),
    *("checkpoint", "head", "lag", "waits"),
]
LONG_HOLDER = "processor_with_a_rather_long_name-ip_10_0_17_203_eu_central_1-1f2e3d4c"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(url=f"sqlite:///{tmp_path}/store.db")
    made.declare(range(12))
    return made


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], scene: Scene
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, scene.url)


@pytest.fixture
def logged(scene: Scene, tmp_path: Path) -> Scene:
    with Log.open(
        scene.url, volumes=[tmp_path / "d"], options=LogOptions(run_monitor=False)
    ) as log:
        log.create("orders", partitions=12)
        with log.producer("orders") as producer:
            producer.send([Event(body=b"x")] * 10, partition=2).result()
    return scene


def test_groups_are_listed_with_counts_and_unknown_is_a_dash(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 0, 1)
    scene.join("b", 2)
    done = leasehold("groups", "ls")
    assert done.code == 0
    head, _, row = done.out.splitlines()
    assert head.split() == GROUP_TITLES
    assert row.split() == ["orders", "billing", "12", "3", "2", "1", "-", "0"]
    (found,) = leasehold("groups", "ls", "-ojson").json
    assert set(found) == GROUP_KEYS
    assert (found["lag_events"], found["spread"], found["owned"]) == (None, 1, 3)
    assert leasehold("groups", "ls", "-ojsonl").jsonl == [found]


def test_show_says_where_a_handler_fails(leasehold: CommandLine, logged: Scene) -> None:
    logged.join("a", 2, 3, failing={logged.key(2): "at 9, attempt 4"})
    done = leasehold("groups", "show", "orders", "billing")
    assert "partition 2: the handler is failing at 9, attempt 4" in (done.out + done.err)
    found = leasehold("groups", "show", "orders", "billing", "-ojson").json["partitions"]
    assert [each["failing"] for each in found[2:4]] == ["at 9, attempt 4", None]


def test_an_empty_store_has_no_groups(leasehold: CommandLine, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    Scene(url=url).run(lambda store: store.resources("x/y"))
    assert leasehold("groups", "ls", "--store", url, "-ojson").json == []
    done = leasehold("groups", "show", "orders", "billing", "--store", url)
    assert (done.code, done.out) == (3, "")
    assert "it has none" in done.err


def test_show_shows_everything_in_the_order_of_the_numbers(
    leasehold: CommandLine, logged: Scene
) -> None:
    logged.mark(logged.join("a", 2, 10), 3)
    found = leasehold("groups", "show", "orders", "billing", "-ojson").json
    assert set(found) == GROUP_KEYS | {"lag_s", "members", "partitions"}
    assert [each["partition"] for each in found["partitions"]] == [str(each) for each in range(12)]
    assert all(set(each) >= PART_KEYS for each in found["partitions"])
    two, ten = found["partitions"][2], found["partitions"][10]
    assert (two["state"], two["owner"], two["host"], two["epoch"]) == ("leased", "a", "web1", 1)
    assert (two["checkpoint"], two["head"], two["lag_events"]) == (3, 9, 6)
    assert 0 <= two["lag_s"] < 60
    assert (ten["head"], ten["lag_events"]) == (None, None)  # its checkpoint is beyond_end
    (member,) = found["members"]
    assert (member["holder"], member["keys"], member["state"]) == ("a", 2, "active")


def test_show_fits_into_80_columns_and_has_more_where_there_is_room(
    leasehold: CommandLine, logged: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged.mark(logged.join(LONG_HOLDER, 2, host="ip-10-0-17-203.eu-central-1"), 3)
    narrow = leasehold("groups", "show", "orders", "billing")
    assert narrow.code == 0
    assert narrow.widest <= 80
    titles = [*PART_TITLES[:3], *PART_TITLES[4:5], *PART_TITLES[7:]]
    assert titles in [line.split() for line in narrow.out.splitlines()]
    monkeypatch.setattr(tables.out, "width", 240)
    wide = leasehold("groups", "show", "orders", "billing")
    assert PART_TITLES in [line.split() for line in wide.out.splitlines()]
    assert LONG_HOLDER in wide.out
    row = next(line.split() for line in wide.out.splitlines() if line.startswith("   2"))
    assert [*row[:5], *row[7:10]] == [
        "2", "leased", LONG_HOLDER, "ip-10-0-17-203.eu-central-1", "1", "3", "9", "6",
    ]  # fmt: skip


@pytest.mark.parametrize("command", [("groups", "ls"), ("members", "ls"), ("partitions", "ls")])
def test_every_list_fits_into_80_columns_with_long_names(
    leasehold: CommandLine, tmp_path: Path, command: tuple[str, str]
) -> None:
    scene = Scene(
        url=f"sqlite:///{tmp_path}/long.db", stream="orders-of-all-" * 6, group="billing-" * 12
    )
    scene.declare(range(3))
    scene.join(LONG_HOLDER, 0, host="ip-10-0-17-203.eu-central-1.compute.internal")
    place = () if command == ("groups", "ls") else (scene.stream, scene.group)
    done = leasehold(*command, *place, "--store", scene.url)
    assert done.code == 0, done.err
    assert done.widest <= 80


def test_names_are_never_taken_for_markup_or_for_options(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    odd = Scene(url=f"sqlite:///{tmp_path}/odd.db", stream="[red]a/b :smile:", group="--π %41")
    odd.declare(["[bold]", "-1", "10", "9"])
    odd.join("[link=x]h[/link]", "[bold]")
    done = leasehold("groups", "ls", "--store", odd.url)
    assert "[red]a/b :smile:" in done.out
    assert "--π %41" in done.out
    done = leasehold("groups", "show", "--store", odd.url, "--", odd.stream, odd.group)
    assert done.code == 0
    assert "[link=x]h[/link]" in done.out
    shown = [line.split()[0] for line in done.out.splitlines() if "available" in line]
    assert shown == ["9", "10", "-1"]
    done = leasehold("members", "ls", "--store", odd.url, "-ojsonl", "--", odd.stream, odd.group)
    assert done.jsonl[0]["holder"] == "[link=x]h[/link]"
    done = leasehold("groups", "show", "[/red]", "x", "--store", odd.url)
    assert (done.code, "'[/red]'" in done.err) == (3, True)


def test_show_says_what_retention_took_away(
    leasehold: CommandLine, scene: Scene, tmp_path: Path
) -> None:
    options = LogOptions(run_monitor=False)
    with Log.open(scene.url, volumes=[tmp_path / "d"], options=options) as log:
        log.create("orders", partitions=12, segment_bytes=4096)
        with log.producer("orders") as producer:
            for _ in range(4):
                producer.send([Event(body=bytes(4000))], partition=0).result()
        scene.mark(scene.join("a", 0), 0)
        log.trim("orders", execute=True, keep_bytes=1, past_checkpoints=True)
    done = leasehold("groups", "show", "orders", "billing", "-ojson")
    part = done.json["partitions"][0]
    assert part["missed_events"] == part["first"] - 1 > 0
    assert part["lag_events"] == 4 - part["first"]
    assert f"partition 0: retention has removed {part['missed_events']} event" in done.err


def test_show_says_that_a_checkpoint_is_that_of_another_stream(
    leasehold: CommandLine, logged: Scene
) -> None:
    logged.mark(logged.join("a", 3), 70)
    done = leasehold("groups", "show", "orders", "billing")
    assert "partition 3: its checkpoint 70 lies beyond the newest event" in done.err
    assert "`leasehold checkpoints reset`" in done.err


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("groups", "show", "orders", "bill"), 3, "'orders' 'billing'"),
        (("groups", "show", "orders", ""), 2, "group is empty"),
        (("members", "ls", "order", "billing"), 3, "'orders' 'billing'"),
        (("members", "drain", "nobody"), 3, "there is no living member 'nobody'"),
        (("members", "drain", "a", "--timeout", "soon"), 2, "--timeout"),
        (("groups", "ls", "--store", "mysql://x"), 2, "names no store"),
        (("groups", "ls", "--store", "sqlite:///nowhere/at/all.db"), 2, "there is no store"),
        (("groups", "ls", "-oxml"), 2, "jsonl"),
        (("groups",), 2, "show"),
    ],
)
def test_a_wrong_command_says_what_to_do(
    leasehold: CommandLine, scene: Scene, words: tuple[str, ...], code: int, hint: str
) -> None:
    scene.join("a")
    done = leasehold(*words)
    assert done.code == code
    assert hint in done.err + done.out
    assert "Traceback" not in done.err


# ------------------------------------------------------------------------- members


def test_members_are_shown_with_their_leases(leasehold: CommandLine, scene: Scene) -> None:
    loads = {scene.key(0): 10.0, scene.key(1): 2.5}
    scene.join("a", 0, 1, weight=2.0, most=7, loads=loads)
    scene.join("b", draining=True)
    first, second = leasehold("members", "ls", "orders", "billing", "-ojsonl").jsonl
    assert (first["keys"], first["weight"], first["max_partitions"], first["load"]) == (
        2,
        2.0,
        7,
        12.5,
    )
    assert first["renewed_ago_s"] + first["time_left_s"] == pytest.approx(600, abs=0.1)
    assert (first["state"], second["state"], second["load"]) == ("active", "draining", None)
    lines = leasehold("members", "ls", "orders", "billing").out.splitlines()
    assert [lines[2].split()[0], lines[2].split()[-1]] == ["a", "active"]


def test_drain_shows_its_plan_and_does_nothing_without_execute(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 3, 11)
    done = leasehold("members", "drain", "a", "-ojsonl")
    assert done.code == 0
    assert [each["partition"] for each in done.jsonl] == ["3", "11"]
    said = "nothing was done; with --execute: 2 partitions become free, and it leaves"
    assert said in done.err
    assert "nobody else is there" in done.err
    assert not scene.run(lambda store: store.members(scene.name))["a"].leave_requested


def test_without_members_nobody_is_named(leasehold: CommandLine, scene: Scene) -> None:
    done = leasehold("members", "drain", "a")
    assert (done.code, "no living member 'a': there are no members" in done.err) == (3, True)
    done = leasehold("partitions", "move", scene.stream, scene.group, "3", "--to", "a")
    assert (done.code, "there are no members" in done.err) == (3, True)


def test_drain_asks_the_member_and_need_not_wait(leasehold: CommandLine, scene: Scene) -> None:
    scene.join("a", 3)
    scene.join("b")
    done = leasehold("members", "drain", "a", "--execute", "--no-wait")
    assert done.code == 0, done.err
    assert scene.run(lambda store: store.members(scene.name))["a"].leave_requested
    assert "leave_requested" in leasehold("members", "ls", "orders", "billing").out


def test_drain_ends_with_1_when_the_member_does_not_leave_in_time(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("a", 3)
    done = leasehold("members", "drain", "a", "--execute", "--timeout", "100ms")
    assert done.code == 1
    assert "a still owns 1 partition\n" in done.err
    assert "it stays asked" in done.err


def test_drain_waits_until_the_member_has_left(leasehold: CommandLine, scene: Scene) -> None:
    scene.join("a", 3)

    def obey() -> None:
        async def renew() -> None:
            lease = Lease(holder="a", token="t-a", group=scene.name, duration_s=600.0)
            async with open_store(scene.url) as store:
                leave_requested = False
                while not leave_requested:
                    await anyio.sleep(0.02)
                    leave_requested = any(
                        each.leave_requested for each in (await store.renew(lease)).members
                    )
                await store.revoke(lease)

        anyio.run(renew)

    thread = threading.Thread(target=obey)
    thread.start()
    done = leasehold("members", "drain", "a", "--execute")
    thread.join()
    assert done.code == 0, done.err
    assert done.err.endswith("a has left\n")


@pytest.mark.spec("B3")
def test_drain_empties_a_living_member(leasehold: CommandLine, scene: Scene) -> None:
    with living_members(scene, "one", "two") as (one, two):
        done = leasehold("members", "drain", one, "--execute", "--timeout", "10m")
        assert done.code == 0, done.err
        left = leasehold("members", "ls", "orders", "billing", "-ojsonl").jsonl
        assert [each["holder"] for each in left] == [two]


@pytest.mark.server
def test_the_same_on_postgresql(leasehold: CommandLine) -> None:
    with database() as url:
        scene = Scene(url=url)
        scene.declare(range(2))
        scene.mark(scene.join("a", 0), 4)
        found = leasehold("groups", "show", "orders", "billing", "-ojson", "--store", url).json
        assert found["partitions"][0]["checkpoint"] == 4
        assert found["members"][0]["renewed_ago_s"] >= 0
