"""``leasehold jobs`` on a real store: what is shown, what is ordered, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.stored_jobs import LONG, Jobs, jobs_in

from leasehold import open_store
from leasehold.clock import SystemClock
from leasehold.jobs import Outcome, Reservation, operator_requests, run_log, try_reserve
from leasehold.jobs.run_log import RunNote
from leasehold.model import HandOver, KeyClaim, Lease, Note, Position

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


# ------------------------------------------------------------------------ ls, show


def test_ls_says_of_each_job_what_it_is_about(leasehold: CommandLine, jobs: Jobs) -> None:
    note = RunNote(host="web1", pid=4711, occurrence=TWO, attempt=2, words="half of it")
    jobs.join("a-web1-1", "etl", note=note)
    jobs.ran("b-web2-1", "paused one", RunNote(outcome=Outcome.FAILED, exit_code=3))
    jobs.ran("b-web2-1", "wanted one", RunNote(outcome=Outcome.OK))
    clock = SystemClock()
    jobs.run(lambda store: operator_requests.pause(store, "paused one", by="ann", clock=clock))
    jobs.run(
        lambda store: operator_requests.request_run(store, "wanted one", by="ann", clock=clock)
    )
    rows = {each["job"]: each for each in leasehold("jobs", "ls", "-ojson").json}
    assert {name: each["state"] for name, each in rows.items()} == {
        "etl": "running",
        "nightly": "free",
        "paused one": "paused",
        "wanted one": "run_requested",
    }
    etl = rows["etl"]
    assert (etl["holder"], etl["host"], etl["pid"], etl["epoch"]) == ("a-web1-1", "web1", 4711, 1)
    assert (etl["occurrence"], etl["attempt"], etl["message"]) == (TWO.isoformat(), 2, "half of it")
    assert (rows["paused one"]["last_outcome"], rows["paused one"]["holder"]) == ("failed", None)
    assert rows["nightly"]["last_outcome"] is None
    table = leasehold("jobs", "ls")
    assert table.widest <= 80
    assert "wanted one" in table.out


def test_a_schedule_that_nobody_carries_out_is_late(leasehold: CommandLine, jobs: Jobs) -> None:
    [owned] = jobs.join("a", "nightly", note=RunNote(schedule="0 2 * * * Europe/Berlin"))
    jobs.mark(owned, run_log.done_position(TWO))
    running = leasehold("jobs", "show", "nightly", "-ojson").json
    assert running["late_s"] is None
    jobs.leave(owned)
    found = leasehold("jobs", "show", "nightly", "-ojson").json
    assert found["late_s"] > 86400
    assert found["done_until"] == TWO.isoformat()
    assert datetime.fromisoformat(found["next_at"]) > SystemClock().utc_now()
    assert "Europe/Berlin" in found["explained"]
    leasehold("jobs", "pause", "nightly")
    assert leasehold("jobs", "show", "nightly", "-ojson").json["late_s"] is None


def test_show_tells_all_that_is_known_of_one_job(leasehold: CommandLine, jobs: Jobs) -> None:
    jobs.ran(
        "b", "nightly", RunNote(occurrence=TWO, outcome=Outcome.FAILED, exit_code=3, words="no")
    )
    [owned] = jobs.join("a", "nightly")
    jobs.run(
        lambda store: store.annotate([Note(ownership=owned, text=RunNote(words="7 %").to_json())])
    )
    found = leasehold("jobs", "show", "nightly", "-ojson").json
    assert (found["holder"], found["epoch"], found["message"]) == ("a", 2, "7 %")
    assert (found["last_holder"], found["last_exit_code"], found["last_message"]) == ("b", 3, "no")
    assert (found["last_outcome"], found["lease_s"]) == ("failed", 600.0)
    shown = leasehold("jobs", "show", "nightly")
    assert shown.widest <= 80
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["holder", "a"] in lines
    assert ["paused", "no"] in lines
    assert ["last", "exit", "code", "3"] in lines
    assert "done until" not in shown.out
    assert found["done_until"] is None
    assert ["lease", "10m"] in lines


def test_ls_leaves_out_what_says_nothing_before_all_else(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    daily = RunNote(host="web1", schedule="0 2 * * * UTC", outcome=Outcome.OK)
    for name in ("nightly", "a rather long name", "reports"):
        jobs.ran("worker-web1-12345678", name, daily)
    free = leasehold("jobs", "ls")
    assert free.out.split("\n")[0].split() == ["job", "state", "last", "next"]
    jobs.join("worker-web1-12345678", "reports", note=replace(daily, occurrence=TWO, outcome=None))
    held = leasehold("jobs", "ls")
    assert held.widest <= 80
    assert {"holder", "last", "next"} <= set(held.out.split("\n")[0].split())


def test_a_store_that_is_not_there_is_made_by_run_or_worker(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    for words in (("ls",), ("show", "nightly"), ("pause", "nightly"), ("next", "nightly")):
        done = leasehold("jobs", *words, "--store", f"sqlite:///{tmp_path}/missing.db")
        assert done.code == 2
        assert "`leasehold run` or `leasehold worker` makes a new one" in done.err


def test_show_leaves_out_what_is_not_known(leasehold: CommandLine) -> None:
    shown = leasehold("jobs", "show", "nightly").out
    assert [line.split() for line in shown.splitlines()] == [
        ["job", "nightly"],
        ["state", "free"],
        ["epoch", "0"],
        ["paused", "no"],
        ["run", "requested", "no"],
    ]


def test_an_unknown_job_is_exit_code_3_and_names_those_there_are(leasehold: CommandLine) -> None:
    for words in (
        ("show", "nigtly"),
        ("history", "nigtly"),
        ("next", "nigtly"),
        ("pause", "nigtly"),
        ("resume", "nigtly"),
        ("trigger", "nigtly"),
        ("break", "nigtly", "--epoch", "1"),
        ("move", "nigtly"),
        ("check-epoch", "nigtly", "1"),
    ):
        done = leasehold("jobs", *words)
        assert done.code == 3, words
        assert "nightly" in done.err or "jobs ls" in done.err


def test_a_job_with_positions_of_its_own_has_no_schedule(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    [owned] = jobs.join("a", "nightly")
    jobs.mark(owned, Position(sequence_number=41, offset="batch"))
    found = leasehold("jobs", "show", "nightly", "-ojson").json
    assert (found["done_until"], found["schedule"]) == (None, None)


def test_a_schedule_that_can_not_be_read_here_is_shown_as_it_is(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    jobs.ran("a", "nightly", RunNote(schedule="0 2 * * * Nowhere/Land"))
    found = leasehold("jobs", "show", "nightly", "-ojson").json
    assert (found["schedule"], found["next_at"]) == ("0 2 * * * Nowhere/Land", None)
    done = leasehold("jobs", "next", "nightly")
    assert done.code == 2
    assert "Nowhere/Land" in done.err


# ---------------------------------------------------------------------------- next


@pytest.mark.spec("J6")
def test_next_uses_the_schedule_that_the_last_run_has_told(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    jobs.ran("a", "nightly", RunNote(schedule="0 30 2 * * * Asia/Kolkata"))
    done = leasehold("jobs", "next", "nightly", "-n", "3", "-ojson")
    assert [each["local"][11:] for each in done.json] == ["02:30:00+05:30"] * 3
    assert [each["utc"][11:] for each in done.json] == ["21:00:00+00:00"] * 3
    assert "Asia/Kolkata" in done.err
    assert leasehold("jobs", "next", "nightly").widest <= 80


def test_next_of_a_job_without_a_schedule_says_so(leasehold: CommandLine) -> None:
    done = leasehold("jobs", "next", "nightly")
    assert done.code == 2
    assert "'nightly' has no schedule in this store" in done.err
    assert "--cron" in done.err


def test_next_of_a_schedule_needs_no_store_and_tells_of_clock_changes(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEHOLD_STORE")
    monthly = ("--cron", "0 12 1 * *", "-n", "13")
    done = leasehold("jobs", "next", *monthly, "--tz", "Europe/Berlin")
    assert done.code == 0
    assert len(done.out.splitlines()) == 15
    notes = [line for line in done.err.splitlines() if line.startswith("warning: the clocks")]
    assert len(notes) == 2
    assert sorted(line.split(" go ")[1].split(" by ")[0] for line in notes) == ["back", "forward"]
    assert all("01:00 UTC" in line for line in notes)
    assert "warning" not in leasehold("jobs", "next", *monthly).err
    assert len(leasehold("jobs", "next", "--cron", "every 30s", "-ojsonl").jsonl) == 5


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nightly", "--cron", "* * * * *"),
        ("nightly", "--tz", "UTC"),
        ("--cron", "61 * * * *"),
        ("--cron", "0 2 * * *", "--tz", "Nowhere/Land"),
        ("--cron", "0 2 30 2 *"),
    ],
)
def test_next_says_what_is_wrong_with_it(leasehold: CommandLine, words: tuple[str, ...]) -> None:
    assert leasehold("jobs", "next", *words).code == 2


# -------------------------------------------------------------------------- orders


def standing(jobs: Jobs) -> operator_requests.OperatorRequests:
    return jobs.run(operator_requests.read_requests)


def test_pause_and_resume_keep_who_and_why(leasehold: CommandLine, jobs: Jobs) -> None:
    done = leasehold("jobs", "pause", "nightly", "--reason", "disk full")
    assert (done.code, done.out) == (0, "")
    assert "jobs resume" in done.err
    found = leasehold("jobs", "show", "nightly", "-ojson").json
    assert (found["state"], found["paused_reason"]) == ("paused", "disk full")
    assert "@" in found["paused_by"]
    assert "resumed" in leasehold("jobs", "resume", "nightly").err
    assert standing(jobs).paused == {}
    again = leasehold("jobs", "resume", "nightly")
    assert (again.code, "was not paused" in again.err) == (0, True)


def test_a_pause_may_end_by_itself(leasehold: CommandLine, jobs: Jobs) -> None:
    leasehold("jobs", "pause", "nightly", "--for", "2h")
    until = standing(jobs).paused["nightly"].until
    assert until is not None
    assert timedelta(hours=1.9) < until - SystemClock().utc_now() <= timedelta(hours=2)
    leasehold("jobs", "pause", "nightly", "--until", "2999-01-01T06:00+01:00")
    assert standing(jobs).paused["nightly"].until == datetime(2999, 1, 1, 5, tzinfo=UTC)
    for words in (
        ("--until", "2999-01-01T06:00"),
        ("--until", "tomorrow"),
        ("--until", "2020-01-01T06:00Z"),
        ("--for", "2 weeks"),
        ("--for", "0s"),
        ("--for", "2h", "--until", "2999-01-01T06:00Z"),
    ):
        assert leasehold("jobs", "pause", "nightly", *words).code == 2, words


def test_a_pause_says_that_a_run_goes_on(leasehold: CommandLine, jobs: Jobs) -> None:
    jobs.join("a", "nightly")
    done = leasehold("jobs", "pause", "nightly")
    assert "goes on: a has it in epoch 1" in done.err
    assert leasehold("jobs", "show", "nightly", "-ojson").json["state"] == "running"


def test_run_wants_one_run_and_a_wish_that_stands_is_enough(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    assert leasehold("jobs", "trigger", "nightly", "--reason", "after the repair").code == 0
    order = standing(jobs).run_requests["nightly"]
    assert order.why == "after the repair"
    again = leasehold("jobs", "trigger", "nightly")
    assert (again.code, "already" in again.err) == (0, True)
    assert standing(jobs).run_requests["nightly"] == order


def test_a_table_in_a_pipe_fits_into_80_columns_and_breaks_no_name(
    leasehold: CommandLine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.join("a-holder-of-some-length-1234", "nightly")
    monkeypatch.delenv("COLUMNS")
    for words in (["ls"], ["history", "nightly"], ["history", "nightly", "--runs"]):
        table = leasehold("jobs", *words)
        assert table.widest <= 80, words
        assert words[-1] == "--runs" or "a-holder-of-some-length-1234" in table.out


def test_a_trigger_can_be_cancelled_until_a_node_takes_it(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    assert leasehold("jobs", "trigger", "nightly").code == 0
    done = leasehold("jobs", "cancel-trigger", "nightly")
    assert (done.code, "cancelled: 'nightly'" in done.err) == (0, True)
    assert not standing(jobs).run_requests
    again = leasehold("jobs", "cancel-trigger", "nightly")
    assert (again.code, "no trigger of 'nightly' is waiting" in again.err) == (0, True)
    assert leasehold("jobs", "trigger", "nightly").code == 0
    assert "nightly" in standing(jobs).run_requests
    assert leasehold("jobs", "cancel-trigger", "daily").code == 3


# --------------------------------------------------------------------------- break


def test_break_shows_its_plan_and_does_nothing_without_execute(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    jobs.join("a", "nightly")
    done = leasehold("jobs", "break", "nightly", "--epoch", "1")
    assert done.code == 0
    assert "nothing was done" in done.err
    assert "warning" not in done.err  # it would wait for the whole lease
    assert done.widest <= 80
    assert leasehold("jobs", "show", "nightly", "-ojson").json["state"] == "running"


def test_break_ends_the_epoch_that_is_meant_and_no_other(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    jobs.ran("z", "nightly", RunNote())
    jobs.join("a", "nightly")
    wrong = leasehold("jobs", "break", "nightly", "--epoch", "1", "--after", "0s", "--execute")
    assert wrong.code == 4
    assert "a has it in epoch 2" in wrong.err
    done = leasehold("jobs", "break", "nightly", "--epoch", "2", "--after", "0s", "--execute")
    assert done.code == 0
    assert "warning" in done.err
    assert leasehold("jobs", "show", "nightly", "-ojson").json["state"] == "free"
    assert leasehold("jobs", "break", "nightly", "--epoch", "2").code == 4


# ------------------------------------------------------------------------- move


def test_move_goes_to_one_that_had_it_before(leasehold: CommandLine, jobs: Jobs) -> None:
    [owned] = jobs.join("b", "nightly")
    jobs.leave(owned)
    jobs.join("c")
    jobs.join("a", "nightly")
    plan = leasehold("jobs", "move", "nightly")
    assert (plan.code, "handed over to b" in plan.err) == (0, True)
    done = leasehold("jobs", "move", "nightly", "--no-wait", "--execute")
    assert done.code == 0
    assert leasehold("jobs", "show", "nightly", "-ojson").json["asked_by"] == "b"
    named = leasehold("jobs", "move", "nightly", "--to", "c", "--no-wait", "--execute")
    assert named.code == 0
    assert leasehold("jobs", "show", "nightly", "-ojson").json["asked_by"] == "c"


def test_move_finds_one_that_waits_for_the_job_by_its_id(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    jobs.join("a", "nightly")
    alone = leasehold("jobs", "move", "nightly", "--execute")
    assert alone.code == 3
    assert "nobody is known to stand by" in alone.err
    assert "no other worker is running" in alone.err
    jobs.join("etl-web2-1")
    jobs.join("nightly-web2-1")
    assert "to nightly-web2-1" in leasehold("jobs", "move", "nightly").err
    assert "already" in leasehold("jobs", "move", "nightly", "--to", "a").err
    assert leasehold("jobs", "move", "nightly", "--to", "nobody").code == 3


def test_move_finds_a_worker_of_the_same_name_that_never_had_the_job(
    leasehold: CommandLine, jobs: Jobs
) -> None:
    jobs.join("worker-web1-00000001", "nightly")
    jobs.join("etl-web1-00000002")
    strangers = leasehold("jobs", "move", "nightly")
    assert (strangers.code, "etl-web1-00000002" in strangers.err) == (3, True)
    jobs.join("worker-web1-00000003")
    assert "to worker-web1-00000003" in leasehold("jobs", "move", "nightly").err


def test_move_of_a_job_that_nobody_has_is_refused(leasehold: CommandLine, jobs: Jobs) -> None:
    done = leasehold("jobs", "move", "nightly")
    assert done.code == 4
    assert "nobody has it" in done.err


def test_move_waits_until_the_other_one_has_it(
    leasehold: CommandLine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    [owned] = jobs.join("a", "nightly")
    jobs.join("b")
    real = SystemClock.sleep

    async def pass_on(self: SystemClock, seconds: float) -> None:
        """While the command waits, the holder does as it was asked."""
        async with open_store(jobs.url) as store:
            given = await store.hand_over([HandOver(ownership=owned, to="b")], limit=LONG)
            if given:
                lease = Lease(holder="b", token="t-b", group="job", duration_s=600.0)
                await store.claim(lease, [KeyClaim(key=owned.key, seen_epoch=1)])
        await real(self, 0.0)

    monkeypatch.setattr(SystemClock, "sleep", pass_on)
    done = leasehold("jobs", "move", "nightly", "--to", "b", "--execute")
    assert (done.code, "b has 'nightly'" in done.err) == (0, True)


# ---------------------------------------------------------------------- check-epoch


@pytest.mark.spec("B5")
def test_check_token_knows_the_current_holder_alone(leasehold: CommandLine, jobs: Jobs) -> None:
    with reserved(jobs.url) as job:
        token = str(job.epoch)
        assert leasehold("jobs", "check-epoch", "nightly", token).code == 0
        assert leasehold("jobs", "check-epoch", "nightly", token, "-ojson").json["current"] is True
        old = leasehold("jobs", "check-epoch", "nightly", str(job.epoch + 1))
        assert (old.code, job.holder in old.err) == (4, True)
    over = leasehold("jobs", "check-epoch", "nightly", token, "-ojson")
    assert (over.code, over.json["current"], over.json["holder"]) == (4, False, None)
    assert leasehold("jobs", "check-epoch", "nightly", "0").code == 2


def reserved(url: str) -> Reservation:
    answer = try_reserve("nightly", store=url)
    assert isinstance(answer, Reservation)
    return answer
