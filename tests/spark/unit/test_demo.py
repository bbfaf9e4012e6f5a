"""The pure parts of the demo: the flights, the pace, the story, the comparison and the verdict."""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import typer
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner, Result

from leasehold.cli import demo as command
from leasehold.cli.tables import SafeConsole
from leasehold.errors import UsageError
from leasehold.events import partition_of
from leasehold.spark.demo.delays import Comparison, compare, events_of, flights_file, read_flights
from leasehold.spark.demo.demo_files import DemoFiles, prepared
from leasehold.spark.demo.running import AuditWord, DemoVerdict, further, table_of, wrong
from leasehold.spark.demo.screen import (
    DriverLine,
    DriverReport,
    GroupLook,
    LineKind,
    PartitionLook,
    Rates,
    Screen,
    ScreenContents,
    Story,
    StoryLine,
    driver_of,
    heard,
    painted,
)
from leasehold.spark.demo.show import SendPace, Shown

FLIGHTS = 6_000


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return read_flights(flights_file(), most=FLIGHTS)


def partials(flights: pd.DataFrame, batches: int = 5) -> pa.Table:
    """The table as drivers would write it: a few rows for each batch."""
    by = ["carrier", "origin", "dest", "hour"]
    parts = [
        flights[flights["n"] % batches == number]
        .groupby(by)
        .agg(
            flights=("n", "size"),
            departed=("dep_delay", "count"),
            delay_min=("dep_delay", lambda each: each.sum(min_count=1)),
            longest_min=("dep_delay", "max"),
            numbers=("n", list),
        )
        .reset_index()
        for number in range(batches)
    ]
    return pa.Table.from_pandas(pd.concat(parts), preserve_index=False)


# --------------------------------------------------------------- the flights


def test_flights_come_in_the_order_of_their_scheduled_departure(flights: pd.DataFrame) -> None:
    assert list(flights["n"]) == list(range(FLIGHTS))
    assert flights["departure"].is_monotonic_increasing
    assert flights["dep_delay"].isna().any()  # some never left


def test_an_event_is_a_flight_as_json_with_the_aircraft_as_key(flights: pd.DataFrame) -> None:
    events = events_of(flights)
    assert events.num_rows == FLIGHTS
    first = events.slice(0, 1).to_pylist()[0]
    assert first["key"] == flights["tailnum"][0]
    again = pd.read_json(io.StringIO("\n".join(events["body"].to_pylist())), lines=True)
    assert list(again["n"]) == list(flights["n"])
    assert again["dep_delay"].sum() == flights["dep_delay"].sum()


def test_the_flights_fill_eight_partitions_about_evenly(flights: pd.DataFrame) -> None:
    events = events_of(flights)
    counts = pd.Series([partition_of(key, 8) for key in events["key"].to_pylist()]).value_counts()
    assert len(counts) == 8
    assert counts.max() < 2 * counts.min()


# ------------------------------------------------------------------ the pace


def test_the_pace_follows_the_clock_and_stops_at_the_gate() -> None:
    pace = SendPace(100.0, now_s=10.0)
    assert pace.due(10.5, sent=0, gate=1000) == 50
    assert pace.due(11.0, sent=50, gate=70) == 20
    assert pace.due(20.0, sent=70, gate=70) == 0
    # Time before a gate is not made up for.
    assert pace.due(20.1, sent=70, gate=1000) == 10


def test_without_a_pace_only_the_gate_counts() -> None:
    pace = SendPace(None, now_s=0.0)
    assert pace.due(0.0, sent=0, gate=3000) == 3000
    assert pace.due(0.0, sent=3000, gate=3000) == 0


# ----------------------------------------------------------------- the story


def part(partition: str, owner: str | None, *, done: int = 0, epoch: int = 1) -> PartitionLook:
    return PartitionLook(
        partition=partition, owner=owner, epoch=epoch, done=done, head=100, done_epoch=epoch
    )


def look(at_s: float, owners: str, *, done: int = 0) -> GroupLook:
    parts = [
        part(str(number), None if name == "-" else name, done=done)
        for number, name in enumerate(owners)
    ]
    return GroupLook(at_s=at_s, parts=tuple(parts))


def words(lines: list[StoryLine]) -> list[str]:
    return [each.words for each in lines]


def test_the_story_tells_takes_hand_overs_and_take_overs() -> None:
    story = Story()
    assert words(story.see(look(0.0, "----"))) == []
    assert words(story.see(look(1.0, "AAAA"))) == ["A takes partitions 0, 1, 2, 3"]
    assert words(story.see(look(2.0, "AABB"))) == ["A hands partitions 2, 3 over to B"]
    assert words(story.see(look(3.0, "AABB"))) == []
    story.lost("B", 10.0, "was killed")
    assert words(story.see(look(11.0, "AA--"))) == []
    assert words(story.see(look(14.9, "AAAA"))) == [
        "A takes partitions 2, 3, 4.9 s after B was killed"
    ]
    story.back("B")
    assert words(story.see(look(20.0, "BAAA"))) == ["A hands partition 0 over to B"]


def test_rates_come_from_the_checkpoints_of_what_a_driver_owns() -> None:
    rates = Rates()
    rates.add(look(0.0, "AB"))
    rates.add(look(1.0, "AB", done=500))
    rates.add(look(2.0, "A-", done=1000))
    assert (rates.total("A"), rates.total("B")) == (1000, 500)
    assert rates.per_s("A") == 500.0
    for second in range(3, 12):
        rates.add(look(float(second), "A-", done=1000))
    assert rates.per_s("A") == 0.0


def test_a_driver_is_known_by_the_begin_of_its_id() -> None:
    assert driver_of("A-some_host-1f2e3d4c") == "A"


def test_what_a_driver_says_comes_through_and_other_lines_do_not() -> None:
    said = DriverReport(kind=LineKind.REFUSED, rows=7, epochs={"0": 3}, words="no")
    assert heard(said.line()) == said
    for line in ("", "WARNING something", "[]", '{"kind": "sings"}', "7"):
        assert heard(line) is None


# ---------------------------------------------------------------- the screen


def picture() -> ScreenContents:
    drivers = [
        DriverLine(name=name, state="stopped", partitions=8, per_s=123_456.0, total=336_776)
        for name in "ABC"
    ]
    full = [replace(each, done=84_321, head=99_999, epoch=17) for each in look(99.9, "ABC-").parts]
    return ScreenContents(
        look=GroupLook(at_s=99.9, parts=tuple(full)),
        drivers=tuple(drivers),
        sent=336_776,
        total=336_776,
    )


def test_the_picture_fits_into_eighty_columns() -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(painted(picture()))
    lines = console.export_text().splitlines()
    assert max(len(each.rstrip()) for each in lines) <= 80
    shown = "\n".join(lines)
    assert "336,776 of 336,776" in shown
    assert "nobody" in shown
    assert "15,678" in shown  # waits


def test_without_a_terminal_lines_follow_each_other() -> None:
    file = io.StringIO()
    with Screen(SafeConsole(file=file, width=80)) as screen:
        screen.tell(StoryLine(at_s=1.0, words="B is killed", tone="bad"))
        screen.show(picture())
        screen.show(picture())
    told = file.getvalue().splitlines()
    assert told[0].split(maxsplit=2) == ["1.0", "s", "B is killed"]
    again = [line for line in told if not line.startswith(" " * 9)]
    assert len(again) == 2  # how far it is, is said only now and then
    assert max(map(len, told)) <= 80


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_line_goes_on_below_its_words(*, terminal: bool) -> None:
    file = io.StringIO()
    told = "the table refuses A's 1,180 flights: " + "and nothing was written " * 5 + "/a/path" * 15
    console = SafeConsole(file=file, width=80, force_terminal=terminal, no_color=True)
    with Screen(console) as screen:
        screen.tell(StoryLine(at_s=92.1, words=told))
    plain = Text.from_ansi(file.getvalue()).plain
    lines = [line.rstrip() for line in plain.splitlines() if line.strip()]
    assert lines[0].startswith(" 92.1 s  the table refuses A's")
    assert all(line.startswith(" " * 9) for line in lines[1:3])
    assert all(len(line) <= 80 for line in lines if "/a/path" not in line)
    assert " ".join("".join(lines).split()).count("/a/path") == 15


# ------------------------------------------------------------ the comparison


@pytest.mark.spec("S4")
def test_a_table_with_every_flight_once_is_equal(flights: pd.DataFrame) -> None:
    found = compare(flights, partials(flights))
    assert found.equal, found
    assert (found.flights, found.in_table, found.examples) == (FLIGHTS, FLIGHTS, ())
    assert found.delay_min == found.delay_found_min == int(flights["dep_delay"].sum())


def test_a_table_that_lacks_a_row_is_not(flights: pd.DataFrame) -> None:
    table = partials(flights)
    lost = table.slice(0, 1).to_pylist()[0]
    found = compare(flights, table.slice(1))
    assert not found.equal
    assert (found.missing, found.twice, found.unequal) == (lost["flights"], 0, 1)
    assert f"flight {lost['numbers'][0]} is 0 times in the table" in found.examples


def test_a_table_with_a_row_twice_is_not(flights: pd.DataFrame) -> None:
    table = partials(flights)
    found = compare(flights, pa.concat_tables([table, table.slice(5, 1)]))
    assert not found.equal
    assert (found.missing, found.twice, found.unequal) == (0, table["flights"][5].as_py(), 1)


def test_a_table_with_one_flight_lost_and_one_twice_is_not(flights: pd.DataFrame) -> None:
    rows = partials(flights).to_pylist()
    several = next(each for each in rows if each["flights"] > 1)
    several["numbers"][0] = several["numbers"][1]  # all sums stay as they are
    found = compare(flights, pa.Table.from_pylist(rows))
    assert not found.equal
    assert (found.missing, found.twice, found.unequal) == (1, 1, 0)


def test_a_table_with_a_wrong_sum_or_a_strange_flight_is_not(flights: pd.DataFrame) -> None:
    rows = partials(flights).to_pylist()
    rows[0]["delay_min"] = (rows[0]["delay_min"] or 0) + 1
    found = compare(flights, pa.Table.from_pylist(rows))
    assert not found.equal
    assert found.unequal == 1
    strange = {**rows[0], "carrier": "ZZ", "flights": 1, "numbers": [FLIGHTS + 5]}
    found = compare(flights, pa.Table.from_pylist([*rows, strange]))
    assert (found.strange, found.unequal) == (1, 2)


# --------------------------------------------------------------- the verdict


SHOWN = Shown(killed_rows=2_000, paused_s=9.1, refused_rows=2_310, refused_words="no", took_s=100.0)
EQUAL = Comparison(
    flights=336_776,
    in_table=336_776,
    missing=0,
    twice=0,
    strange=0,
    groups=2_893,
    unequal=0,
    delay_min=4_152_200,
    delay_found_min=4_152_200,
    examples=(),
)
PROVED = AuditWord(claims=11, proved=11)


def test_the_verdict_holds_only_if_all_of_it_does() -> None:
    good = DemoVerdict(shown=SHOWN, comparison=EQUAL, audit=PROVED)
    assert good.holds
    assert not wrong(good)
    for bad in (
        replace(good, comparison=replace(EQUAL, missing=1, examples=("flight 7",))),
        replace(good, comparison=replace(EQUAL, in_table=1)),
        replace(good, audit=replace(PROVED, proved=10, words=("commits-tile",))),
        replace(good, shown=replace(SHOWN, refused_rows=0)),
    ):
        assert not bad.holds
        assert not all(right for _, _, right in bad.rows())


def test_the_verdict_fits_into_eighty_columns() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table_of(DemoVerdict(shown=SHOWN, comparison=EQUAL, audit=PROVED)))
    lines = console.export_text().splitlines()
    assert len(lines) == 2 + 7 + 1  # none is folded
    assert lines[-1].startswith("A row of the table holds the sums")
    assert "336,776 of 336,776" in lines[2]


# ----------------------------------------------------------------- the place


def test_a_place_that_has_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="not empty"), prepared(tmp_path):
        pass
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "x"


def test_the_default_place_keeps_the_last_demo_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with prepared(None) as place:
        (place.root / "old").mkdir()
    with prepared(None) as again:
        assert again == place
        assert not (place.root / "old").exists()
        with pytest.raises(UsageError, match="another demo runs"), prepared(None):
            pass
    (place.root / ".leasehold-demo").unlink()
    with pytest.raises(UsageError, match="no demo"), prepared(None):
        pass


# --------------------------------------------------------- what to look at then


def parsed(lines: list[str]) -> list[list[str]]:
    """The commands as a shell reads them."""
    text = "\n".join(lines).replace("\\\n", "")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def test_the_commands_are_those_of_the_environment_and_fit_into_eighty_columns(
    tmp_path: Path,
) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("leasehold", "python"):
        (programs / name).touch()
    root = Path("/tmp/leasehold-demo-1000")
    lines = further(DemoFiles(root=root), programs=programs, cwd=tmp_path)
    assert max(map(len, lines)) <= 80
    describe, audit, example = parsed(lines)
    store = ["--store", f"sqlite:///{root}/leases.db"]
    assert describe == [".venv/bin/leasehold", "groups", "show", "flights", "delays", *store]
    sink = ["--sink", f"delta:{root}/delays"]
    assert audit == [".venv/bin/leasehold", "audit", "flights", "delays", *sink, *store]
    assert example == [".venv/bin/python", "examples/spark_pipeline.py", "YOUR.csv"]


def test_the_commands_of_another_place_have_its_path_or_the_name_alone(tmp_path: Path) -> None:
    programs, elsewhere = tmp_path / "my programs", tmp_path / "elsewhere"
    programs.mkdir()
    (programs / "leasehold").touch()
    lines = further(DemoFiles(root=tmp_path), programs=programs, cwd=elsewhere)
    describe, _, example = parsed(lines)
    assert describe[0] == str(programs / "leasehold")
    assert example[0] == "python"


# --------------------------------------------------------------- the command


def test_a_speed_is_a_number_or_max() -> None:
    assert command._per_s("max") is None
    assert command._per_s("4500") == 4500.0
    for bad in ("fast", "0", "-1", "inf", "nan"):
        with pytest.raises(UsageError, match="flights per second"):
            command._per_s(bad)


def test_a_missing_extra_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(UsageError, match=r"needs pyspark: pip install 'leasehold\[demo\]'"):
        command._check_extras()


def played(monkeypatch: pytest.MonkeyPatch, place: Path, verdict: DemoVerdict) -> Result:
    """The command, with a demo that comes to this verdict."""
    monkeypatch.setattr("leasehold.spark.demo.running.run_demo", lambda *_given, **_named: verdict)
    app = typer.Typer()
    app.command()(command.demo)
    return CliRunner().invoke(app, ["--keep", str(place)])


def test_the_command_says_where_everything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = DemoVerdict(shown=SHOWN, comparison=EQUAL, audit=PROVED)
    done = played(monkeypatch, tmp_path / "kept", good)
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "kept") in done.output
    for word in ("report.html", "delays", "logs", "examples/spark_pipeline.py"):
        assert word in done.output


@pytest.mark.spec("S4")
def test_the_exit_code_is_1_if_a_flight_is_in_the_table_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flights: pd.DataFrame
) -> None:
    table = partials(flights)
    tampered = compare(flights, pa.concat_tables([table, table.slice(0, 1)]))
    done = played(
        monkeypatch, tmp_path / "kept", DemoVerdict(shown=SHOWN, comparison=tampered, audit=PROVED)
    )
    assert done.exit_code == 1
    assert "is 2 times in the table" in done.output
    assert "The demo has failed" in done.output


def test_the_exit_code_is_1_if_the_audit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditWord(claims=11, proved=10, words=("commits-tile, partition 3: a gap",))
    bad = DemoVerdict(shown=SHOWN, comparison=EQUAL, audit=audit)
    done = played(monkeypatch, tmp_path / "kept", bad)
    assert done.exit_code == 1
    assert "commits-tile, partition 3: a gap" in done.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_in_good_order_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    handlers: list[object] = []

    def interrupted(*_given: object, **_named: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            handlers.extend(map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))

    monkeypatch.setattr("leasehold.spark.demo.running.run_demo", interrupted)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(logging, "disable", lambda _level: None)
    before = signal.getsignal(number)
    app = typer.Typer()
    app.command()(command.demo)
    done = CliRunner().invoke(app, ["--keep", str(tmp_path / "kept")])
    assert done.exit_code == 130
    assert done.output.startswith("stopped; no process is left")
    assert handlers == [signal.SIG_IGN] * 3  # no second one leaves half done what was begun
    assert signal.getsignal(number) is before
