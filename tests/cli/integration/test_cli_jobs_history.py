"""``leasehold jobs history`` on a real store: who reserved a job, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.stored_jobs import Jobs, jobs_in

from leasehold.cli.jobs import run_row
from leasehold.jobs import Outcome, run_log
from leasehold.jobs.run_log import RunLogEntry, RunNote
from leasehold.model import EndReason, Term
from leasehold.names import job_key

TWO = datetime(2026, 3, 1, 2, tzinfo=UTC)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with jobs_in(tmp_path) as made:
        yield made


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], jobs: Jobs
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, jobs.url)


@pytest.mark.spec("J3")
def test_history_has_the_last_ten_reservers_and_one_in_a_row_is_one_line(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    for number in range(12):
        for _ in range(2 if number % 2 else 1):
            jobs.ran(f"h{number}", "nightly", RunNote(host="web1", outcome=Outcome.OK))
    rows = leasehold("jobs", "history", "nightly", "-ojsonl").jsonl
    assert [each["holder"] for each in rows] == [f"h{n}" for n in range(11, 1, -1)]
    assert [each["runs"] for each in rows] == [2, 1] * 5
    assert (rows[0]["epochs"], rows[1]["epochs"]) == ("17-18", "16")
    assert rows[0]["outcomes"] == {"ok": 2}
    assert len(leasehold("jobs", "history", "nightly", "--all", "-ojsonl").jsonl) == 12
    assert len(leasehold("jobs", "history", "nightly", "--limit", "3", "-ojsonl").jsonl) == 3
    assert leasehold("jobs", "history", "nightly").widest <= 80


@pytest.mark.spec("J3")
def test_runs_are_told_one_by_one_and_a_crash_is_seen(leasehold: CommandLine, jobs: Jobs) -> None:
    jobs.ran("a", "nightly", RunNote(occurrence=TWO, outcome=Outcome.OK, exit_code=0))
    failed = RunNote(
        occurrence=TWO, attempt=2, outcome=Outcome.FAILED, exit_code=3, words="no disk"
    )
    jobs.ran("b", "nightly", failed)
    [owned] = jobs.join("c", "nightly", note=RunNote(words="half of it"))
    jobs.run(lambda store: store.break_(owned.key, epoch=owned.epoch, after=timedelta(0)))
    jobs.join("d", "nightly", note=RunNote(words="at it"))
    rows = leasehold("jobs", "history", "nightly", "--runs", "-ojsonl").jsonl
    assert [(each["holder"], each["outcome"], each["exit_code"]) for each in rows] == [
        ("d", None, None),
        ("c", "broken", None),
        ("b", "failed", 3),
        ("a", "ok", 0),
    ]
    assert (rows[2]["message"], rows[2]["attempt"], rows[2]["lasted_s"] >= 0) == (
        "no disk",
        2,
        True,
    )
    assert rows[2]["occurrence"] == TWO.isoformat()
    table = leasehold("jobs", "history", "nightly", "--runs")
    assert table.widest <= 80
    assert "running" in table.out
    assert len(leasehold("jobs", "history", "nightly", "--runs", "-n1", "-ojsonl").jsonl) == 1


@pytest.mark.spec("J3")
def test_who_reserved_a_job_and_ran_nothing_is_in_the_log_and_told_if_all_is_asked_for(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    nothing = RunNote(outcome=Outcome.NO_RUN, words="nothing was to be done")
    jobs.ran("a", "nightly", nothing)
    assert leasehold("jobs", "ls", "-ojson").json[0]["last_outcome"] is None
    assert leasehold("jobs", "history", "nightly", "-ojson").json == []
    for holder, note in (("a", RunNote(exit_code=0)), ("b", nothing), ("a", RunNote(exit_code=3))):
        jobs.ran(holder, "nightly", note)
    jobs.ran("b", "nightly", nothing)
    history = ("jobs", "history", "nightly", "-ojsonl")
    (row,) = leasehold(*history).jsonl
    assert (row["holder"], row["runs"], row["outcomes"]) == ("a", 2, {"ok": 2})
    assert [each["exit_code"] for each in leasehold(*history, "--runs").jsonl] == [3, 0]
    told = leasehold(*history, "--all").jsonl
    assert [(each["holder"], each["runs"]) for each in told] == [
        ("b", 0),
        ("a", 1),
        ("b", 0),
        ("a", 1),
    ]
    assert told[-1]["outcomes"] == {"ok": 1, "no_run": 1}
    assert len(leasehold(*history, "--runs", "--all").jsonl) == 5
    assert leasehold("jobs", "show", "nightly", "-ojson").json["last_exit_code"] == 3


def test_how_long_a_run_lasted_that_expired_is_not_known() -> None:
    ended = {EndReason.EXPIRED: None, EndReason.RELEASED: 24.0}
    for reason, lasted_s in ended.items():
        term = Term(
            key=job_key("nightly"),
            epoch=1,
            holder="a",
            started_at=TWO,
            ended_at=TWO + timedelta(seconds=24),
            reason=reason,
        )
        assert run_row(RunLogEntry.of(term))["lasted_s"] == lasted_s


def test_next_begins_after_what_is_done_already(leasehold: CommandLine, jobs: Jobs) -> None:
    [owned] = jobs.join("a", "nightly", note=RunNote(schedule="0 2 * * * UTC"))
    jobs.mark(owned, run_log.done_position(datetime(2100, 1, 31, 2, tzinfo=UTC)))
    jobs.leave(owned)
    rows = leasehold("jobs", "next", "nightly", "-n", "2", "-ojson").json
    assert [each["utc"][:10] for each in rows] == ["2100-02-01", "2100-02-02"]
    found = leasehold("jobs", "show", "nightly", "-ojson").json
    assert found["next_at"].startswith("2100-02-01")
