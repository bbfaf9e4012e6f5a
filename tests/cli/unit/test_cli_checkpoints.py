"""``leasehold checkpoints``: how far a group is, and putting it elsewhere."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.groups import Scene
from tests.support.postgres import database

from leasehold.clock import SystemClock
from leasehold.events import Event
from leasehold.log import Log, LogOptions

ORDERS = ("orders", "billing")
RESET = ("checkpoints", "reset", *ORDERS)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Three partitions; two have 10 events, all done up to 3 by a member that has left."""
    made = Scene(url=f"sqlite:///{tmp_path}/store.db")
    options = LogOptions(run_monitor=False)
    with Log.open(made.url, volumes=[tmp_path / "d"], options=options) as log:
        log.create("orders", partitions=3)
        with log.producer("orders") as producer:
            for partition in range(2):
                producer.send([Event(body=b"x")] * 10, partition=partition).result()
    made.declare(range(3))
    made.mark(made.join("a", 0, 1), 3)
    made.leave("a")
    return made


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], scene: Scene
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, scene.url)


def test_checkpoints_are_listed_and_those_that_are_not_there_are_dashes(
    leasehold: CommandLine,
) -> None:
    rows = leasehold("checkpoints", "ls", *ORDERS, "-ojson").json
    assert [(each["partition"], each["checkpoint"], each["head"]) for each in rows] == [
        ("0", 3, 9),
        ("1", 3, 9),
        ("2", None, None),
    ]
    assert [each["lag_events"] for each in rows] == [6, 6, 0]
    assert datetime.fromisoformat(rows[0]["checkpointed_at"]).tzinfo is not None
    table = leasehold("checkpoints", "ls", *ORDERS)
    assert table.widest <= 80
    assert table.out.splitlines()[-1].split() == ["2", "-", "-", "0", "0.0s", "-", "-"]


def test_reset_shows_its_plan_and_does_nothing_without_execute(
    leasehold: CommandLine, scene: Scene
) -> None:
    done = leasehold(*RESET, "--to", "earliest", "-ojson")
    assert done.code == 0
    plan = [(each["now"], each["then"], each["again"], each["skipped"]) for each in done.json]
    assert plan == [(4, 0, 4, 0), (4, 0, 4, 0), (None, 0, None, None)]
    assert "nothing was done; with --execute: 3 checkpoints changed" in done.err
    assert scene.checkpoints() == {"0": 3, "1": 3}
    table = leasehold(*RESET, "--to", "latest")
    assert table.widest <= 80
    assert table.out.splitlines()[2].split() == ["0", "4", "10", "0", "6", "-"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("earliest", {"0": -1, "1": 3}),
        ("latest", {"0": 9, "1": 3}),
        ("seq:7", {"0": 6, "1": 3}),
        ("offset:0", {"0": -1, "1": 3}),
        ("2001-01-01T00:00:00+01:00", {"0": -1, "1": 3}),
        (None, {"1": 3}),
    ],
)
def test_reset_puts_the_next_event_where_it_is_told_to(
    leasehold: CommandLine, scene: Scene, place: str | None, expected: dict[str, int]
) -> None:
    to = ("--remove",) if place is None else ("--to", place)
    done = leasehold(*RESET, *to, "--partition", "0", "--execute")
    assert done.code == 0, done.err
    assert f"done: 1 checkpoint {'removed' if place is None else 'changed'}" in done.err
    assert scene.checkpoints() == expected


def test_reset_to_a_time_after_the_last_event_skips_all(
    leasehold: CommandLine, scene: Scene
) -> None:
    now = SystemClock().utc_now().isoformat()
    assert leasehold(*RESET, "--to", now, "--partition", "1", "--execute").code == 0
    assert scene.checkpoints()["1"] == 9  # all events are older


@pytest.mark.spec("B5")
def test_reset_is_refused_whole_while_somebody_owns_a_partition(
    leasehold: CommandLine, scene: Scene
) -> None:
    scene.join("host-web1-b", 1)
    plan = leasehold(*RESET, "--to", "earliest")
    assert plan.code == 0
    assert "it would be refused now" in plan.err
    assert "host-web1-b" in plan.out
    done = leasehold(*RESET, "--to", "earliest", "--execute")
    assert done.code == 4
    words = done.err.replace("\n", " ")
    assert "nothing was changed: partition 1 is owned by host-web1-b" in words
    assert "`leasehold members drain host-web1-b --execute`" in words
    assert scene.checkpoints() == {"0": 3, "1": 3}
    done = leasehold(*RESET, "--to", "earliest", "--partition", "0", "--execute")
    assert done.code == 0  # of which nobody owns it


def test_a_reset_is_in_the_history_and_the_group_goes_on_from_there(
    leasehold: CommandLine, scene: Scene
) -> None:
    assert leasehold(*RESET, "--to", "seq:2", "--execute", "--partition", "0").code == 0
    terms = leasehold("partitions", "history", *ORDERS, "0", "-ojsonl").jsonl
    assert (terms[0]["holder"], terms[0]["reason"]) == ("operator", "reset")
    row = leasehold("checkpoints", "ls", *ORDERS, "-ojsonl").jsonl[0]
    assert (row["checkpoint"], row["lag_events"]) == (1, 8)


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        ((), 2, "either --to PLACE or --remove"),
        (("--to", "latest", "--remove"), 2, "either --to PLACE or --remove"),
        (("--to", "yesterday"), 2, "seq:<number>"),
        (("--to", "2026-01-01T00:00:00"), 2, "time zone"),
        (("--to", "seq:11"), 2, "partition 0: "),
        (("--to", "seq:-1"), 2, "whole number"),
        (("--to", "latest", "--partition", "3"), 3, "no partition '3'"),
    ],
)
def test_a_wrong_place_is_refused(
    leasehold: CommandLine, scene: Scene, words: tuple[str, ...], code: int, hint: str
) -> None:
    done = leasehold(*RESET, *words, "--execute")
    assert (done.code, done.out) == (code, "")
    assert hint in done.err
    assert "Traceback" not in done.err
    assert scene.checkpoints() == {"0": 3, "1": 3}


def test_without_a_log_a_number_still_works(leasehold: CommandLine, tmp_path: Path) -> None:
    bare = Scene(url=f"sqlite:///{tmp_path}/bare.db")
    bare.declare(range(1))
    done = leasehold(*RESET, "--to", "seq:5", "--execute", "--store", bare.url)
    assert done.code == 0, done.err
    assert bare.checkpoints() == {"0": 4}
    done = leasehold(*RESET, "--to", "latest", "--execute", "--store", bare.url)
    assert (done.code, "use seq:N" in done.err) == (2, True)


@pytest.mark.server
def test_the_same_on_postgresql(leasehold: CommandLine) -> None:
    with database() as url:
        scene = Scene(url=url)
        scene.declare(range(2))
        scene.mark(scene.join("a", 0), 4)
        words = ("--to", "seq:2", "--execute", "--store", url)
        assert leasehold(*RESET, *words).code == 4
        scene.leave("a")
        assert leasehold(*RESET, *words).code == 0
        assert scene.checkpoints() == {"0": 1, "1": 1}
