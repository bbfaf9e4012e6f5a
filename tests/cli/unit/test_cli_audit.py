"""``leasehold audit``: what it refuses before any work, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import pytest
from tests.support import audit_material as a
from tests.support.command import CommandLine
from tests.support.log_publisher import make_log

from leasehold.cli.audit import _print
from leasehold.cli.common import Output
from leasehold.cli.tables import err
from leasehold.names import partition_key
from leasehold.spark.audit import Audit, Check, Finding, claims
from leasehold.spark.audit.rows import sink_of
from leasehold.stores import open_store

LONG = "the checkpoint says that events up to 1000 are done, and the sink holds those up to 999"


@pytest.fixture
def leasehold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    (tmp_path / "store.db").touch()
    return CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path}/store.db")


def test_without_spark_it_says_what_to_install(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "leasehold.spark.audit", None)
    done = leasehold("audit", "orders", "billing")
    assert done.code == 2
    assert "pip install 'leasehold[spark]'" in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--html", "."), "folder"),
        (("--html", "nowhere/at/all.html"), "nowhere/at"),
        (("--sink", "tables"), "delta:PATH"),
        (("--sink", "postgresql://host/database"), "#TABLE"),
        (("--store", "sqlite:///not/there.db"), "not/there.db"),
    ],
)
def test_a_wrong_command_is_refused_before_spark_starts(
    leasehold: CommandLine, words: tuple[str, ...], hint: str
) -> None:
    done = leasehold("audit", "orders", "billing", *words)
    assert (done.code, done.out) == (2, "")
    assert hint in done.err


@pytest.mark.parametrize("sink", ["postgress://ann:secret@host/db#t", "postgresql://ann:secret@h"])
def test_a_password_in_a_wrong_sink_is_not_shown(leasehold: CommandLine, sink: str) -> None:
    done = leasehold("audit", "orders", "billing", "--sink", sink)
    assert done.code == 2
    assert "secret" not in done.err
    assert "postgresql://host/database#TABLE" in done.err


def test_a_password_may_have_a_hash_in_it() -> None:
    sink = sink_of("postgresql://ann:half#rest@host/db#delays", store="")
    assert sink.name == "postgres:postgresql://ann@host/db delays"


def test_a_long_error_is_broken_between_words_where_somebody_reads_it(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(err, "_force_terminal", True)
    monkeypatch.setattr(err, "_color_system", None)
    done = leasehold("audit", "orders", "billing", "--sink", "tables")
    lines = [line.rstrip() for line in done.err.splitlines()]
    assert (done.code, done.out, len(lines)) == (2, "", 2)
    assert max(map(len, lines)) <= 80
    assert " ".join(lines) == (
        "error: 'tables' names no sink: write delta:PATH, parquet:PATH, "
        "postgresql://host/database#TABLE or log:STREAM"
    )


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark must not be started."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("leasehold.spark.sessions.session", started)


def _with_a_group(directory: Path) -> None:
    """The stream orders in the log, and the group billing that works on it."""
    url = f"sqlite:///{directory}/store.db"
    make_log(url, directory)

    async def declare() -> None:
        async with open_store(url) as store:
            await store.declare([partition_key("orders", "billing", "0")])

    anyio.run(declare)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(("sink", "what"), [("delta", "Delta table"), ("parquet", "Parquet sink")])
def test_a_sink_that_is_not_there_is_told_in_a_sentence_before_spark_starts(
    leasehold: CommandLine, tmp_path: Path, sink: str, what: str
) -> None:
    _with_a_group(tmp_path)
    place = tmp_path / "nosuch"
    done = leasehold("audit", "orders", "billing", "--sink", f"{sink}:{place}")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"error: there is no {what} at {place}: look at the path")
    assert done.err.count("\n") == 1
    assert not place.exists()


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("more", [(), ("--sink", "delta:nosuch")])
def test_an_unknown_stream_is_told_first_and_before_spark_starts(
    leasehold: CommandLine, tmp_path: Path, more: tuple[str, ...]
) -> None:
    _with_a_group(tmp_path)
    done = leasehold("audit", "odrers", "billing", *more)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: there is no stream 'odrers'; there are: 'orders'.")
    done = leasehold("audit", "orders", "biling", *more)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: there is no group 'biling' of stream 'orders'")


def test_the_table_fits_80_columns_and_json_has_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    finding = Finding(check="checkpoints-follow", partition="17", what=LONG, evidence=LONG)
    checks = tuple(
        Check(claim=each, looked_at=12_345_678, faults=1, findings=(finding,))
        for each in claims.ALL
    )
    found = Audit(material=a.CLEAN, checks=checks, notes=("a note",))
    _print(found, Output.TABLE)
    table = capsys.readouterr()
    assert table.out.startswith("REFUTED  orders billing: 12 findings against 12 of 12 claims\n")
    assert max(map(len, table.out.splitlines())) <= 80
    assert "note: a note" in table.err
    _print(found, Output.JSON)
    row = json.loads(capsys.readouterr().out)
    assert (row["verdict"], len(row["checks"]), len(row["findings"])) == ("REFUTED", 12, 12)
    assert row["findings"][0]["what"] == LONG
