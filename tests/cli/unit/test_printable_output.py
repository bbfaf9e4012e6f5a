"""Text of other parties never reaches a terminal as anything but text, whatever the command."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import pytest
from rich.table import Table
from rich.text import Text
from tests.support.command import CommandLine
from tests.support.groups import Scene
from tests.support.stored_jobs import jobs_in

import leasehold
from leasehold.cli.tables import SafeConsole
from leasehold.events import Event
from leasehold.jobs import Outcome
from leasehold.jobs.run_log import RunNote
from leasehold.log import Log, LogOptions
from leasehold.printable import LOGGERS, json_text, printable

HOSTILE = (
    "\x1b[31m\x9b2J\u202eab\u2066\x07\x08\x7f\r\nFORGED\t[red]x[/red] :smile: \u2028\U000e0041"
)
TEXT, NAME = "markertext", "markername"
SEEN = ":smile:"  # neither an emoji nor lost
STREAM, GROUP, JOB, FILE = "orders", "billing", "nightly", "/reports/today"
SOURCES = Path(leasehold.__file__).parent


def _lists(stream: str, group: str, job: str, path: str) -> list[list[str]]:
    """Every command that shows something and changes nothing."""
    of_group = [
        ["groups", "show", stream, group],
        ["members", "ls", stream, group],
        ["members", "drain", f"{TEXT}-1"],
        ["partitions", "ls", stream, group, "0"],
        ["partitions", "history", stream, group, "0"],
        ["partitions", "break", stream, group, "0", "--epoch", "1"],
        ["partitions", "move", stream, group, "0", "--to", f"{TEXT}-2"],
        ["checkpoints", "ls", stream, group],
        ["checkpoints", "reset", stream, group, "--to", "earliest"],
    ]
    of_rest = [
        ["groups", "ls"],
        ["jobs", "ls"],
        ["jobs", "show", job],
        ["jobs", "history", job],
        ["jobs", "history", job, "--runs"],
        ["jobs", "break", job, "--epoch", "1"],
        ["jobs", "check-epoch", job, "1"],
        ["files", "ls"],
        ["files", "show", path],
        ["files", "recover", path],
        ["files", "verify"],
        ["files", "rm", path],
        ["files", "volumes"],
        ["log", "ls"],
        ["log", "show", stream],
        ["log", "verify", stream],
        ["log", "rm", stream],
        ["log", "trim", stream, "--older-than", "1d"],
    ]
    forms = ("table", "json", "jsonl")
    found = [[*each, "-o", form] for each in of_group + of_rest for form in forms]
    return found + [["log", "cat", stream, "-o", form] for form in ("table", "jsonl")]


def _fill(directory: Path, stream: str, group: str, job: str, path: str) -> str:
    scene = Scene(url=f"sqlite:///{directory}/store.db", stream=stream, group=group)
    scene.declare(range(2))
    owned = scene.join(f"{TEXT}-1", 0, 1, host=f"{TEXT}-host")
    scene.join(f"{TEXT}-2")
    scene.mark(owned, 3)
    with jobs_in(directory) as jobs:
        jobs.ran(f"{TEXT}-2", job, RunNote(outcome=Outcome.FAILED, words=f"{TEXT} words"))
        jobs.join(f"{TEXT}-3", job, note=RunNote(host=f"{TEXT}-host", pid=1, words=TEXT))
    volumes = [directory / "volume"]
    with Log.open(
        scene.url, volumes=volumes, name=TEXT, options=LogOptions(run_monitor=False)
    ) as log:
        log.create(stream, partitions=2)
        with log.producer(stream) as producer:
            event = Event(body=HOSTILE.encode(), key=HOSTILE, properties={"a": HOSTILE})
            producer.send([event] * 5, partition=0).result()
        with log.files.create(path) as file:
            file.write(HOSTILE.encode())
    return scene.url


def _poison(directory: Path, *, marker: str, quoted: bool) -> None:
    """Put hostile text wherever the marker is, as another user of the database could."""
    hostile = quote(HOSTILE, safe="") if quoted else HOSTILE

    def changed(text: str) -> str:
        is_json = text.startswith(("{", "["))
        return text.replace(marker, json.dumps(HOSTILE)[1:-1] if is_json else hostile)

    database = sqlite3.connect(directory / "store.db")
    try:
        database.create_function("changed", 1, changed)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for column in database.execute(f"PRAGMA table_info({table})").fetchall():
                database.execute(
                    f"UPDATE OR IGNORE {table} SET {column[1]} = changed({column[1]}) "
                    f"WHERE typeof({column[1]}) = 'text'"
                )
        database.commit()
    finally:
        database.close()


def _bad(text: str) -> list[str]:
    """What is not printable, and lines that somebody forged."""
    found = [repr(each) for each in text.replace("\n", "") if not each.isprintable()]
    return found + [line for line in text.split("\n") if line.startswith("FORGED")]


@pytest.mark.parametrize("kind", ["text", "names", "quoted names"])
def test_no_command_prints_a_control_character_of_somebody_else(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    names = (STREAM, GROUP, JOB, FILE)
    if kind != "text":
        names = (f"{NAME}-s", f"{NAME}-g", f"{NAME}-j", f"/{NAME}/f")
    run = CommandLine(monkeypatch, capfdbinary, _fill(tmp_path, *names))
    _poison(tmp_path, marker=TEXT, quoted=False)
    if kind != "text":
        _poison(tmp_path, marker=NAME, quoted=kind == "quoted names")
    seen, wrong = 0, {}
    for words in _lists(*names):
        done = run(*[each.replace(TEXT, HOSTILE).replace(NAME, HOSTILE) for each in words])
        shown = done.out + done.err
        seen += SEEN in shown
        bad = _bad(shown)
        if bad:
            wrong[" ".join(words)] = bad[:3]
        if done.raw and words[-1] != "table":
            _ = done.json if words[-1] == "json" else done.jsonl  # it is valid
    assert not wrong
    assert seen > 15


def test_events_as_json_are_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = CommandLine(monkeypatch, capfdbinary, _fill(tmp_path, STREAM, GROUP, JOB, FILE))
    done = run("log", "cat", STREAM, "-o", "jsonl")
    assert not _bad(done.out)
    for each in done.jsonl:
        assert (each["body"], each["key"], each["properties"]["a"]) == (HOSTILE,) * 3


def test_an_error_is_one_printable_line(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    run = CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path}/{HOSTILE}.db")
    done = run("groups", "ls")
    assert done.code == 2
    assert not _bad(done.err)
    assert done.err.count("\n") == 1
    assert SEEN in done.err
    assert "[red]x[/red]" in done.err


def _table_with(text: str) -> Table:
    table = Table(text, title=text)
    table.add_row(text)
    return table


@pytest.mark.parametrize("make", [str, Text, _table_with])
def test_a_terminal_gets_no_control_sequence_but_of_our_styles(make) -> None:  # type: ignore[no-untyped-def]
    file = StringIO()
    console = SafeConsole(file=file, force_terminal=True, width=400, color_system="truecolor")
    console.print(make(HOSTILE.replace("\n", "")), style="blue")
    ours = re.compile(r"\x1b\[(?:0|1|3|34|1;34|3;34)m")
    assert not _bad(ours.sub("", file.getvalue()))
    assert r"\x1b[31m\x9b2J\u202eab" in file.getvalue()
    assert "[red]x[/red] :smile:" in file.getvalue()


def test_what_is_printable_stays_as_it_is() -> None:
    assert printable("žluťoučký 東京 🙂 [red] \\x1b") == "žluťoučký 東京 🙂 [red] \\x1b"
    assert printable("a\x1b\x9b\u202e\udc80\U000e0041\n") == r"a\x1b\x9b\u202e\udc80\U000e0041\n"
    assert printable("a\nb\t", keep="\n") == "a\nb\\t"


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_json_keeps_its_data(ensure_ascii: bool) -> None:
    value = {"a": [HOSTILE, "東京", "\udc80"]}
    text = json_text(value, indent=2, ensure_ascii=ensure_ascii)
    assert not _bad(text)
    assert json.loads(text) == value


def test_what_leasehold_logs_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    log, formatter = logging.getLogger("leasehold.jobs"), logging.Formatter()
    error = ValueError(HOSTILE)
    log.warning("%s: %d: %s", HOSTILE, 3, error, exc_info=error)
    text = formatter.format(caplog.records[0])
    assert [each for each in _bad(text) if "FORGED" not in each] == []
    assert caplog.records[0].args[1] == 3  # type: ignore[index]


def test_every_logger_and_every_console_is_one_of_those_that_print_safely() -> None:
    texts = {path: path.read_text() for path in SOURCES.rglob("*.py")}
    names = set(re.findall(r'getLogger\("leasehold\.([\w.]+)"\)', "".join(texts.values())))
    assert names == set(LOGGERS)
    direct = re.compile(
        r"(?<!Safe)\bConsole\(|(?<!\.)\bprint\(|typer\.echo\((?!json_text|printable|\")"
    )
    found = {
        f"{path.name}: {line.strip()}"
        for path, text in texts.items()
        if "cli" in path.parts
        for line in text.splitlines()
        if direct.search(line)
    }
    assert found <= {
        'app.py: typer.echo(version("leasehold"))',
        "tables.py: class SafeConsole(Console):",
        "tables.py: def print(self, *objects: Any, **options: Any) -> None:",
    }
