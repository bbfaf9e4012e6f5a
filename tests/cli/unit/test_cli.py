"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import CommandLine

from leasehold.cli.app import exit_code
from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    InvalidName,
    InvalidUrl,
    LeaseholdError,
    LeaseLost,
    StoreUnavailable,
    StoreUnusable,
    UnknownResource,
)
from leasehold.testing.sim.checks import InvariantBroken

NUMBERS = {
    "cycles",
    "moves",
    "min_moves",
    "spread",
    "calls_per_host_cycle",
    "unowned_s",
    "seed",
}

SMALL = ("simulate", "--hosts", "3", "--partitions", "10")


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidName("x"), 2),
        (InvalidUrl("x"), 2),
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


def test_a_scenario_as_json_is_one_object_on_stdout(leasehold: CommandLine) -> None:
    done = leasehold(
        "simulate", "--hosts", "3", "--partitions", "10", "--scenario", "join", "-ojson"
    )
    assert done.code == 0
    assert set(done.json) >= NUMBERS


def test_a_comparison_has_every_strategy(leasehold: CommandLine) -> None:
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
    runs = done.json["runs"]
    assert [run["strategy"] for run in runs] == [
        "even",
        "balanced",
        "greedy",
        "one_steal",
        "biggest_owner",
        "by_load",
    ]


def test_the_table_fits_80_columns_and_the_picture_is_there(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    drawing = tmp_path / "join.svg"
    done = leasehold(*SMALL, "--compare", "--svg", str(drawing))
    assert done.code == 0
    assert done.widest <= 80
    assert "biggest_owner" in done.out
    assert "no owner" in done.out
    assert drawing.read_text(encoding="utf-8").startswith("<svg ")


def test_one_seed_alone_repeats_that_day(leasehold: CommandLine) -> None:
    done = leasehold("simulate", "--seed", "780", "-o", "json")
    assert (done.json["seeds"], done.json["first_seed"]) == (1, 780)


COMMON = {"kind", "seeds", "first_seed", "violations", "simulated_minutes"}


@pytest.mark.parametrize(
    ("kind", "sums"),
    [
        ("member", {"hosts", "owner_changes", "writes_accepted", "writes_fenced"}),
        ("pumps", {"events", "handler_calls", "repeated_calls", "sink_writes_fenced"}),
        ("files", {"processes", "faults", "power_cuts", "bytes_acknowledged", "losses_reported"}),
        ("jobs", {"processes", "jobs", "runs", "repeated_runs", "owner_changes"}),
    ],
)
def test_every_kind_of_fault_run_is_summed_up_and_told(
    leasehold: CommandLine, kind: str, sums: set[str]
) -> None:
    found = leasehold("simulate", "--kind", kind, "--seed", "3", "-o", "json").json
    assert set(found) >= COMMON | sums
    assert (found["kind"], found["seeds"], found["first_seed"]) == (kind, 1, 3)
    assert found["violations"] == []
    told = leasehold("simulate", "--kind", kind, "--seed", "3", "--story")
    assert told.code == 0
    lines = dict(line.strip().rsplit("  ", 1) for line in told.out.splitlines() if line.strip())
    shown = {name.strip().replace(" ", "_"): value.strip() for name, value in lines.items()}
    assert shown.pop("violations") == "0"
    assert shown.pop("kind") == kind
    numbers = {name: float(value.replace(",", "")) for name, value in shown.items()}
    assert numbers == {name: found[name] for name in found.keys() - {"kind", "violations"}}
    assert len(told.err.splitlines()) > 20


def test_a_kind_alone_is_its_first_seed(leasehold: CommandLine) -> None:
    found = leasehold("simulate", "--kind", "jobs", "-o", "json").json
    assert (found["kind"], found["seeds"], found["first_seed"]) == ("jobs", 1, 0)


def test_a_broken_invariant_is_printed_with_what_repeats_it(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(seed: int, *, trace: object = None) -> None:
        raise InvariantBroken(f"seed {seed}: two runs at once")

    monkeypatch.setattr("leasehold.testing.sim.jobs_run.run_job_faults", broken)
    done = leasehold("simulate", "--kind", "jobs", "--seed", "7")
    assert done.code == 1
    assert "seed 7: two runs at once" in done.out
    assert "repeat it with: leasehold simulate --kind jobs --seed 7" in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("simulate", "--seeds", "3", "--scenario", "join"), "--seed"),
        (("simulate", "--kind", "jobs", "--scenario", "join"), "--kind is of fault runs"),
        (("simulate", "--kind", "jobs", "--hosts", "3"), "draws everything from its seed"),
        (("simulate", "--kind", "pump"), "pumps"),
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
    leasehold: CommandLine, words: tuple[str, ...], hint: str
) -> None:
    done = leasehold(*words)
    assert done.code == 2
    assert done.out == ""
    assert hint in done.err


def test_an_svg_that_can_not_be_written_is_said_before_the_work(leasehold: CommandLine) -> None:
    done = leasehold(
        "simulate", "--hosts", "2", "--partitions", "2", "--svg", "/nowhere/at/all.svg"
    )
    assert done.code == 2
    assert "/nowhere/at" in done.err
    assert "Traceback" not in done.err


def test_version_and_help(leasehold: CommandLine) -> None:
    assert leasehold("--version").out.strip().count(".") == 2
    words = leasehold("--help").out
    assert "One owner at a time for partitions, jobs, files and event logs." in words
    assert all(command in words for command in ("simulate", "files", "log"))


def test_the_help_of_a_store_names_all_that_the_command_can_use(leasehold: CommandLine) -> None:
    for words in (("groups", "ls"), ("jobs", "ls"), ("run",), ("process",)):
        assert "azure-blob://ACCOUNT" in leasehold(*words, "--help").out
    for words in (("log", "ls"), ("files", "ls"), ("hub",)):
        assert "azure-blob" not in leasehold(*words, "--help").out


def test_a_log_in_azure_blob_is_refused_with_what_to_use(leasehold: CommandLine) -> None:
    for words in (
        ("hub", "--log", "azure-blob://acme/c01"),
        ("log", "ls", "--store", "azure-blob://acme/c01"),
        ("files", "ls", "--store", "azure-blob://acme/c01"),
    ):
        done = leasehold(*words)
        assert done.code == 2
        assert "can not be kept in Azure Blob" in done.err
        assert "write sqlite:///path/to/leases.db or postgresql://user@host" in done.err
        assert done.err.count("\n") == 1
