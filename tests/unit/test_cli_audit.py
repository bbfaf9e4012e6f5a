"""``leasehold audit``: what it refuses before any work, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support import audits as a
from tests.support.command import CommandLine

from leasehold.cli.audit import _print
from leasehold.cli.common import Output
from leasehold.spark.audit import Audit, Check, Finding, claims

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
    assert table.out.startswith("REFUTED  orders billing: 11 findings against 11 of 11 claims\n")
    assert max(map(len, table.out.splitlines())) <= 80
    assert "note: a note" in table.err
    _print(found, Output.JSON)
    row = json.loads(capsys.readouterr().out)
    assert (row["verdict"], len(row["checks"]), len(row["findings"])) == ("REFUTED", 11, 11)
    assert row["findings"][0]["what"] == LONG
