"""The options of ``leasehold run``: what they mean, and what is said of those that are wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.command_wrappers import log_of, plan

from leasehold.cli.run import _if_held, _limits, _occurrence, _on_loss, _retry
from leasehold.clock import SystemClock
from leasehold.core.cron import parse_schedule
from leasehold.errors import UsageError
from leasehold.jobs import Outcome, reserve
from leasehold.jobs.command.command_run import CommandEnd, LossKind, OnLoss
from leasehold.jobs.command.exit_status import (
    ExitReason,
    ExitStatus,
    IfHeld,
    exec_error_code,
    exec_error_text,
    failure_text,
    status_of_end,
)
from leasehold.jobs.wish import Done as NothingToDo


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path}/leases.db")


@pytest.mark.parametrize(
    "words",
    [
        ["--job", "j", "--nonsense", "--", "true"],
        ["--job", "j"],
        ["--", "true"],
        ["--job", "j", "--held-exit", "256", "--", "true"],
        ["--job", "j", "--on-crash", "perhaps", "--", "true"],
        ["--job", "j", "--lease", "soon", "--", "true"],
        ["--job", "j", "--if-held", "perhaps", "--", "true"],
        ["--job", "j", "--if-held", "skip=5m", "--", "true"],
        ["--job", "j", "--retry", "often", "--", "true"],
        ["--job", "j", "--retry", "101", "--", "true"],
        ["--job", "j", "--on-lost", "cmd:", "--", "true"],
        ["--job", "j", "--on-lost", "cmd", "--", "true"],
        ["--job", "j", "--on-lost", "shout", "--", "true"],
        ["--job", "j", "--cron", "soon", "--", "true"],
        ["--job", "j", "--cron", "* * * * *", "--every", "5m", "--", "true"],
        ["--job", "j", "--tz", "Europe/Berlin", "--", "true"],
        ["--job", "j", "--tz", "UTC", "--every", "5m", "--", "true"],
        ["--job", "j", "--occurrence", "cron", "--", "true"],
        ["--job", "j", "--occurrence", "soon", "--", "true"],
        ["--job", "j", "--standby", "--occurrence", "cron", "--cron", "@daily", "--", "true"],
        ["--job", "j", "--store", "nonsense", "--", "true"],
        ["--job", "j", "--store", "memory://", "--", "true"],
    ],
)
def test_what_is_wrong_is_said_with_the_code_of_sysexits(
    leasehold: CommandLine, words: list[str]
) -> None:
    done = leasehold("run", *words)
    assert done.code == 64
    assert done.err.strip()
    assert done.raw == b""


@pytest.mark.parametrize(
    ("words", "code"),
    [(["run", "--job", "j", "--", "true"], 64), (["worker", "tests.support.worker_jobs"], 2)],
)
def test_a_store_that_no_other_process_sees_is_refused(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.setenv("LEASEHOLD_STORE", "Memory://")
    done = leasehold(*words)
    assert done.code == code
    assert "lives in this process alone" in done.err
    assert "sqlite:///leases.db" in done.err


@pytest.mark.parametrize("quiet", [False, True])
def test_trouble_with_the_store_is_reported_on_one_line_each_unless_quiet(
    leasehold: CommandLine, quiet: bool
) -> None:
    words = ["--job", "j", "--lease", "2s", "--store", "postgresql://ann:secret@127.0.0.1:1/x"]
    done = leasehold("run", *words, *(["--quiet"] if quiet else []), "--", "true")
    assert done.code == 69
    if quiet:
        assert done.err == ""
        return
    assert "warning: j: again in" in done.err
    for line in done.err.splitlines():
        assert line.startswith(("leasehold run: ", " ")), line
    assert "Traceback" not in done.err
    assert "secret" not in done.err


def test_who_forgets_the_command_is_told_where_to_write_it(leasehold: CommandLine) -> None:
    said = leasehold("run", "--job", "j").err
    assert "Missing argument 'COMMAND'. Write it behind `--`: " in said


def test_options_behind_the_command_are_its_own(leasehold: CommandLine, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with reserve("j", store=url):
        done = leasehold("run", "--job", "j", "--if-held", "fail", "sh", "-c", "--nonsense")
    assert done.code == 75
    assert "held by" in done.err


def test_one_that_is_skipped_says_nothing_but_to_programs(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    with reserve("j", store=f"sqlite:///{tmp_path}/leases.db"):
        quiet = leasehold("run", "--job", "j", "--", "true")
        told = leasehold("run", "--job", "j", "--json", "--", "true")
    assert (quiet.code, quiet.err) == (0, "")
    line = json.loads(told.err)
    assert (line["job"], line["reason"], line["exit_code"], line["epoch"]) == ("j", "held", 0, None)


@pytest.mark.process
def test_a_store_that_is_made_is_told_once_and_where(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--job", "j", "--store", "sqlite:///here.db", "--", "true"]
    first, second = leasehold(*words), leasehold(*words)
    assert f"made a new store, the file {tmp_path}/here.db" in first.err
    assert (first.code, second.code, second.err) == (0, 0, "")
    assert len(log_of("sqlite:///here.db", "j")) == 2


def test_a_store_that_can_not_be_made_is_not_told_to_be(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/here.db"
    done = leasehold("run", "--job", "j", "--store", url, "--", "true")
    assert done.code == 69
    assert "no directory" in done.err
    assert "made" not in done.err


@pytest.mark.parametrize("more", [(), ("--cron", "@daily"), ("--cron", "@daily", "--standby")])
def test_a_node_without_the_command_reserves_nothing(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("no program")
    missing = leasehold("run", "--job", "j", *more, "--", "./missing.sh")
    plain = leasehold("run", "--job", "j", *more, "--", "./plain")
    assert (missing.code, plain.code) == (127, 126)
    assert f"no command './missing.sh' (looked for from {tmp_path})" in missing.err
    assert f"'./plain' (looked for from {tmp_path}) can not be executed" in plain.err
    assert not (tmp_path / "leases.db").exists()


def test_a_program_is_looked_for_as_it_will_be_executed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "tool").write_text("#!/nowhere/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    names = ("tool", "plain", "folder", "missing", "./tool", str(tmp_path / "tool"))
    assert [exec_error_code(name) for name in names] == [0, 126, 126, 127, 127, 0]
    assert exec_error_text("tool", 127).startswith("the interpreter of 'tool'")


def test_if_held() -> None:
    assert _if_held("skip") == (IfHeld.SKIP, None)
    assert _if_held("fail") == (IfHeld.FAIL, None)
    assert _if_held("wait") == (IfHeld.WAIT, None)
    assert _if_held("wait=5m") == (IfHeld.WAIT, timedelta(minutes=5))


def test_retry() -> None:
    assert _retry("3") == (3, timedelta(seconds=2))
    assert _retry("3:500ms") == (3, timedelta(milliseconds=500))


def test_on_lost() -> None:
    assert _on_loss("stop") == OnLoss(kind=LossKind.STOP)
    assert _on_loss("cmd:yarn kill $X") == OnLoss(kind=LossKind.COMMAND, command="yarn kill $X")


def test_the_limits_leave_time_to_stop_and_to_kill_before_the_lease_ends() -> None:
    timeouts = _limits("j", timedelta(seconds=60), stop_timeout="15s", timeout=None, on_lost="stop")
    assert (timeouts.stop_margin_s, timeouts.stop_timeout_s, timeouts.kill_margin_s) == (
        12.0,
        15.0,
        0.5,
    )
    short = _limits("j", timedelta(seconds=2), stop_timeout="15s", timeout=None, on_lost="stop")
    assert 0 < short.kill_margin_s < short.stop_margin_s / 4
    assert short.slice_s < short.kill_margin_s


def test_which_occurrence_is_reserved() -> None:
    class At(SystemClock):
        def utc_now(self) -> datetime:
            return datetime(2026, 1, 31, 2, 0, 0, 300_000, tzinfo=UTC)

    daily = parse_schedule("0 2 * * *")
    at_two = datetime(2026, 1, 31, 2, tzinfo=UTC)
    clock = At()
    assert _occurrence(None, daily, standby=False, clock=clock) == at_two
    assert _occurrence("cron", daily, standby=False, clock=clock) == at_two
    assert _occurrence("now", daily, standby=False, clock=clock) is None
    assert _occurrence(None, None, standby=False, clock=clock) is None
    assert _occurrence(None, daily, standby=True, clock=clock) is None
    text = "2026-01-31T03:00:00+01:00"
    assert _occurrence(text, None, standby=False, clock=clock) == at_two
    assert _occurrence("2026-01-31T02:00:00Z", None, standby=False, clock=clock) == at_two
    # This clock does not decide whether it is due: the store refuses it if it is not.
    later = _occurrence("2026-01-31T02:05:00Z", None, standby=False, clock=clock)
    assert later == at_two + timedelta(minutes=5)
    with pytest.raises(UsageError, match="needs a schedule"):
        _occurrence("cron", None, standby=False, clock=clock)


@pytest.mark.parametrize(
    ("now", "found"),
    [("01:59:59.500", "2026-01-30T02:00"), ("02:00:00", "2026-01-31T02:00")],
)
def test_an_occurrence_is_reserved_when_its_moment_has_come_and_not_before(
    now: str, found: str
) -> None:
    class At(SystemClock):
        def utc_now(self) -> datetime:
            return datetime.fromisoformat(f"2026-01-31T{now}+00:00")

    at = _occurrence("cron", parse_schedule("0 2 * * *"), standby=False, clock=At())
    assert at == datetime.fromisoformat(f"{found}+00:00")


def test_one_that_a_later_one_has_overtaken_is_not_said_to_be_done() -> None:
    at_two = datetime(2026, 1, 31, 2, tzinfo=UTC)
    done = NothingToDo(
        key="job/nightly", occurrence=at_two, started=False, later=at_two + timedelta(days=1)
    )
    assert str(done) == (
        "the run of 'nightly' at 2026-01-31 02:00:00 UTC: a later one (2026-02-01 02:00:00 UTC) "
        "is done, so this one is not run any more"
    )


def test_the_line_for_programs_has_all_that_is_known() -> None:
    moment = datetime(2026, 1, 31, 2, tzinfo=UTC)
    status = ExitStatus(
        reason=ExitReason.LOST, code=79, message="gone", epoch=4, occurrence=moment, attempt=2
    )
    assert json.loads(status.line("nightly")) == {
        "job": "nightly",
        "reason": "lost",
        "exit_code": 79,
        "message": "gone",
        "epoch": 4,
        "occurrence": "2026-01-31T02:00:00+00:00",
        "attempts": 2,
    }


@pytest.mark.parametrize(
    ("ended", "outcome", "reason", "code"),
    [
        (CommandEnd(exit_code=0), Outcome.OK, ExitReason.ENDED, 0),
        (CommandEnd(exit_code=0, stopped_by=15), Outcome.OK, ExitReason.ENDED, 0),
        (CommandEnd(exit_code=143, stopped_by=15), Outcome.KILLED, ExitReason.STOPPED, 143),
        (CommandEnd(exit_code=143), Outcome.FAILED, ExitReason.ENDED, 143),
        (CommandEnd(exit_code=0, timed_out=True), Outcome.FAILED, ExitReason.TIMED_OUT, 124),
        (CommandEnd(exit_code=127), Outcome.FAILED, ExitReason.ENDED, 127),
        (
            CommandEnd(exit_code=127, executed=False),
            Outcome.NO_RUN,
            ExitReason.NOT_EXECUTED,
            127,
        ),
    ],
)
def test_what_is_made_of_a_run(
    ended: CommandEnd, outcome: Outcome, reason: ExitReason, code: int
) -> None:
    found, status = status_of_end(ended, plan("memory://", "true"))
    assert (found, status.reason, status.code) == (outcome, reason, code)


def test_what_happened_is_said_in_words() -> None:
    assert failure_text(CommandEnd(exit_code=3)) == "the command failed with exit code 3"
    assert failure_text(CommandEnd(exit_code=143)) == "the command was ended by SIGTERM"
    assert failure_text(CommandEnd(exit_code=255)) == "the command failed with exit code 255"
