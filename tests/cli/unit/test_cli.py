"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from leasehold.cli.app import exit_code
from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    InvalidName,
    LeaseholdError,
    LeaseLost,
    StoreUnavailable,
    StoreUnusable,
    UnknownResource,
    UnknownStore,
)

NUMBERS = {
    "cycles",
    "moves",
    "least_moves",
    "spread",
    "calls_per_host_cycle",
    "unowned_s",
    "seed",
}


COMMAND = Path(sys.executable).with_name("leasehold")
SMALL = ("simulate", "--hosts", "3", "--partitions", "10")


def leasehold(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidName("x"), 2),
        (UnknownStore("x"), 2),
        (UnknownResource("x"), 3),
        (LeaseLost("x"), 4),
        (FencedWrite("x"), 4),
        (StoreUnavailable("x"), 5),
        (StoreUnusable("x"), 5),
        (CheckpointBehind("x"), 1),
        (LeaseholdError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: LeaseholdError, code: int) -> None:
    assert exit_code(error) == code


def test_a_scenario_as_json_is_one_object_on_stdout() -> None:
    done = leasehold(
        "simulate", "--hosts", "3", "--partitions", "10", "--scenario", "join", "-ojson"
    )
    assert done.returncode == 0
    assert set(json.loads(done.stdout)) >= NUMBERS


def test_a_comparison_has_every_strategy() -> None:
    done = leasehold(
        "simulate",
        "--hosts",
        "2",
        "--partitions",
        "7",
        "--scenario",
        "crash",
        "--compare",
        "-ojson",
    )
    runs = json.loads(done.stdout)["runs"]
    assert [run["strategy"] for run in runs] == [
        "even",
        "balanced",
        "greedy",
        "one_steal",
        "biggest_owner",
        "by_load",
    ]


def test_the_table_fits_80_columns_and_the_picture_is_there(tmp_path: Path) -> None:
    drawing = tmp_path / "join.svg"
    done = leasehold(*SMALL, "--compare", "--svg", str(drawing))
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "biggest_owner" in done.stdout
    assert "no owner" in done.stdout
    assert drawing.read_text(encoding="utf-8").startswith("<svg ")


def test_bad_days() -> None:
    done = leasehold("simulate", "--seeds", "3", "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["violations"] == []


def test_one_seed_alone_repeats_that_day() -> None:
    done = leasehold("simulate", "--seed", "780", "-o", "json")
    assert (json.loads(done.stdout)["seeds"], json.loads(done.stdout)["first_seed"]) == (1, 780)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("simulate", "--seeds", "3", "--scenario", "join"), "--seed"),
        (("simulate", "--seeds", "3", "--compare"), "--scenario"),
        (("simulate", "--seed", "3", "--hosts", "5"), "--scenario"),
        (("simulate", "--seed", "1", "--strategy", "greedy"), "--scenario"),
        (("simulate", "--seeds", "2", "--story"), "--seed"),
        (("simulate", "--scenario", "crash", "--hosts", "1"), "--hosts"),
        (("simulate", "--svg", "/tmp"), "folder"),
        (("simulate", "--svg", "/tmp/[/x]/x.svg"), "[/x]"),
        (("simulate", "--hosts", "0"), "--hosts"),
        (("simulate", "--scenario", "jion"), "join"),
        (("simulate", "--partitions", "many"), "--partitions"),
        (("simulat",), "simulat"),
    ],
)
def test_a_wrong_command_says_what_to_write_and_exits_with_2(
    words: tuple[str, ...], hint: str
) -> None:
    done = leasehold(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert hint in done.stderr


def test_an_svg_that_can_not_be_written_is_said_before_the_work() -> None:
    done = leasehold(
        "simulate", "--hosts", "2", "--partitions", "2", "--svg", "/nowhere/at/all.svg"
    )
    assert done.returncode == 2
    assert "/nowhere/at" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert leasehold("--version").stdout.strip().count(".") == 2
    words = leasehold("--help").stdout
    assert "One owner at a time for partitions, jobs, files and event logs." in words
    assert all(command in words for command in ("simulate", "files", "log"))


def test_the_help_of_a_store_names_all_that_the_command_can_use() -> None:
    for words in (("groups", "ls"), ("jobs", "ls"), ("run",), ("process",)):
        assert "azure-blob://ACCOUNT" in leasehold(*words, "--help").stdout
    for words in (("log", "ls"), ("files", "ls"), ("hub",)):
        assert "azure-blob" not in leasehold(*words, "--help").stdout


def test_a_log_in_azure_blob_is_refused_with_what_to_use() -> None:
    for words in (
        ("hub", "--log", "azure-blob://acme/c01"),
        ("log", "ls", "--store", "azure-blob://acme/c01"),
        ("files", "ls", "--store", "azure-blob://acme/c01"),
    ):
        done = leasehold(*words)
        assert done.returncode == 2
        assert "can not be kept in Azure Blob" in done.stderr
        assert "write sqlite:///path/to/leases.db or postgresql://user@host" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", [40, 60])
def test_an_error_on_a_terminal_is_broken_between_words(columns: int) -> None:
    words = ("groups", "ls", "--store", "nothing://at-all")
    (line,) = leasehold(*words).stderr.splitlines()
    assert len(line) > 80
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen([COMMAND, *words], stderr=theirs, stdin=theirs, env=environment) as typed:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # nobody has the terminal any more
            while more := os.read(mine, 4096):
                seen += more
        assert typed.wait(60) == 2
    os.close(mine)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).splitlines()
    assert max(map(len, shown)) <= columns
    assert " ".join(each.strip() for each in shown) == line
