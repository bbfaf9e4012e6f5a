"""The wrapper on a real store, in this process: who runs, who does not, and what the log says."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.command_runs import CLOCK, until
from tests.support.command_wrappers import (
    BRISK_S,
    JOB,
    LEASE,
    LEASE_S,
    TIMEOUTS,
    Threaded,
    log_of,
    once,
    plan,
    timeouts_of,
    witness,
    written,
)

from leasehold.core.cron import parse_schedule
from leasehold.jobs import OnCrash, Outcome, Policy, reserve
from leasehold.jobs.command import scheduled
from leasehold.jobs.command.command_run import LossKind, OnLoss
from leasehold.jobs.command.exit_status import ExitReason, IfHeld
from leasehold.jobs.command.guard import processes
from leasehold.jobs.command.signal_queue import SignalQueue
from leasehold.jobs.operator_requests import pause, resume
from leasehold.model import Resource
from leasehold.names import job_key
from leasehold.ports import Store
from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Threaded]
AT_TWO = datetime(2026, 1, 31, 2, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Start wrappers in threads; at the end of the test none is left."""
    with ExitStack() as undo:

        def started(*command: str, lease_s: float = LEASE_S, **rest: Any) -> Threaded:
            made = Threaded(plan=plan(url, *command, lease_s=lease_s, **rest))
            undo.callback(made.signals.close)
            undo.callback(made.end)
            for _ in range(2):
                undo.callback(made.signalled, signal.SIGTERM)
            return made

        yield started


def with_store(url: str, act: Callable[[Store], object]) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await act(store)  # type: ignore[misc]

    anyio.run(run)


@pytest.mark.spec("J3", "B10")
@pytest.mark.parametrize(
    ("script", "code", "outcome"),
    [
        ("exit 0", 0, Outcome.OK),
        ("exit 7", 7, Outcome.FAILED),
        ("kill -9 $$", 137, Outcome.FAILED),
    ],
)
def test_the_log_has_the_outcome_and_the_exit_code(
    url: str, script: str, code: int, outcome: Outcome
) -> None:
    status = once(url, "sh", "-c", script)
    assert (status.code, status.reason, status.epoch) == (code, ExitReason.ENDED, 1)
    (entry,) = log_of(url)
    assert (entry.epoch, entry.outcome, entry.note.exit_code) == (1, outcome, code)


def test_the_command_knows_its_job_and_its_token(url: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    status = once(url, "sh", "-c", f"env > {told}", occurrence=AT_TWO)
    assert status.code == 0
    found = dict(line.partition("=")[::2] for line in told.read_text().splitlines())
    (entry,) = log_of(url)
    assert found["LEASEHOLD_JOB"] == JOB
    assert found["LEASEHOLD_EPOCH"] == found["LEASEHOLD_TOKEN"] == str(entry.epoch)
    assert found["LEASEHOLD_LEASE_ID"] == entry.holder
    assert found["LEASEHOLD_OCCURRENCE"] == "2026-01-31T02:00:00+00:00"
    assert found["LEASEHOLD_ATTEMPT"] == "1"
    assert found["LEASEHOLD_HOST"] == entry.note.host
    assert int(found["LEASEHOLD_LOST_FD"]) > 2


@pytest.mark.spec("J1")
@pytest.mark.parametrize(
    ("if_held", "held_exit", "code"),
    [
        (IfHeld.SKIP, None, 0),
        (IfHeld.FAIL, None, 75),
        (IfHeld.WAIT, None, 75),
        (IfHeld.FAIL, 9, 9),
        (IfHeld.SKIP, 9, 9),
    ],
)
def test_what_somebody_else_has_is_not_run(
    url: str, tmp_path: Path, if_held: IfHeld, held_exit: int | None, code: int
) -> None:
    ran = tmp_path / "ran"
    with reserve(JOB, store=url, lease=LEASE) as job:
        status = once(
            url,
            "touch",
            str(ran),
            if_held=if_held,
            held_exit=held_exit,
            wait=timedelta(seconds=0.1),
        )
        assert f"held by {job.holder}" in status.message
    assert (status.code, status.reason) == (code, ExitReason.HELD)
    assert not ran.exists()


def test_one_that_waits_runs_when_it_is_free(url: str, start: Start, tmp_path: Path) -> None:
    book = tmp_path / "book"
    with reserve(JOB, store=url, lease=LEASE):
        waiting = start(*witness(book, "exit 0"), if_held=IfHeld.WAIT)
    assert waiting.end().code == 0
    assert [token for token, _ in written(book, 1)] == ["2"]


def test_a_store_that_is_away_lets_nothing_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    status = once("postgresql://127.0.0.1:1/nowhere", "touch", str(ran), lease_s=1.0)
    assert (status.code, status.reason) == (69, ExitReason.UNREACHABLE)
    assert "not run without its reservation" in status.message
    assert not ran.exists()


@pytest.mark.spec("J7")
def test_one_that_waits_waits_for_the_store_as_well(url: str, start: Start, tmp_path: Path) -> None:
    with reserve(JOB, store=url, lease=LEASE):
        pass
    path = tmp_path / "leases.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        waiting = start("true", if_held=IfHeld.WAIT, wait=timedelta(seconds=300))
        at_once = once(url, "true", lease_s=1.0)
        other.execute("ROLLBACK")
    assert (at_once.code, at_once.reason) == (69, ExitReason.UNREACHABLE)
    assert waiting.end().code == 0


@pytest.mark.parametrize(
    ("if_held", "held_exit", "code"),
    [(IfHeld.SKIP, None, 0), (IfHeld.FAIL, None, 80), (IfHeld.WAIT, 0, 0), (IfHeld.SKIP, 9, 9)],
)
def test_an_occurrence_that_is_done_is_not_run_again(
    url: str, tmp_path: Path, if_held: IfHeld, held_exit: int | None, code: int
) -> None:
    book = tmp_path / "book"
    command = witness(book, "exit 0")
    how: dict[str, Any] = {"if_held": if_held, "held_exit": held_exit}
    first = once(url, *command, occurrence=AT_TWO, **how)
    again = once(url, *command, occurrence=AT_TWO, **how)
    later = once(url, *command, occurrence=AT_TWO + timedelta(days=1), **how)
    assert [each.reason for each in (first, again, later)] == [
        ExitReason.ENDED,
        ExitReason.DONE,
        ExitReason.ENDED,
    ]
    assert again.code == code
    assert len(written(book, 2)) == 2


def test_an_occurrence_that_was_stopped_is_still_open(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    first = start(*witness(book), occurrence=AT_TWO)
    written(book, 1)
    first.signalled(signal.SIGTERM)
    assert (first.end().code, first.end().reason) == (143, ExitReason.STOPPED)
    left = once(
        url, *witness(book, "exit 0"), occurrence=AT_TWO, policy=Policy(on_crash=OnCrash.ABANDON)
    )
    assert left.reason is ExitReason.DONE
    again = once(url, *witness(book, "exit 0"), occurrence=AT_TWO)
    assert (again.code, again.epoch) == (0, 2)
    newest, stopped = log_of(url)
    assert (stopped.outcome, stopped.note.exit_code) == (Outcome.KILLED, 143)
    assert (newest.outcome, newest.note.attempt) == (Outcome.OK, 2)


@pytest.mark.parametrize(
    ("on_crash", "reason", "message"),
    [
        (OnCrash.RERUN, ExitReason.ENDED, "the next call, or a standby, runs it again"),
        (OnCrash.ABANDON, ExitReason.DONE, "the run is not done, and is abandoned"),
    ],
)
def test_after_a_kill_of_the_guard_on_crash_decides(
    url: str, start: Start, tmp_path: Path, on_crash: OnCrash, reason: ExitReason, message: str
) -> None:
    book, policy = tmp_path / "book", Policy(on_crash=on_crash, retries=3)
    note = f"echo $LEASEHOLD_EPOCH $$ >> {book}"
    first = start("sh", "-c", f"{note}; exec sleep 600", occurrence=AT_TWO, policy=policy)
    ((_, command),) = written(book, 1)
    os.kill(processes()[command].parent, signal.SIGKILL)
    status = first.end()
    assert (status.code, status.reason, status.attempt) == (137, ExitReason.CRASHED, 1)
    assert message in status.message
    assert (log_of(url)[0].outcome, log_of(url)[0].note.exit_code) == (Outcome.CRASHED, 137)
    again = once(url, "sh", "-c", note, occurrence=AT_TWO, policy=policy)
    assert again.reason is reason
    assert len(book.read_text().splitlines()) == (2 if on_crash is OnCrash.RERUN else 1)


def test_a_paused_job_starts_nothing(url: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with_store(url, lambda store: pause(store, JOB, by="ann", why="repairs", clock=CLOCK))
    for if_held in IfHeld:
        status = once(url, "touch", str(ran), if_held=if_held, occurrence=AT_TWO)
        assert (status.code, status.reason) == (81, ExitReason.PAUSED)
        assert "by ann: repairs" in status.message
    assert not ran.exists()
    with_store(url, lambda store: resume(store, JOB, clock=CLOCK))
    assert once(url, "touch", str(ran), occurrence=AT_TWO).code == 0
    assert ran.exists()


def test_a_failure_is_tried_again_under_the_same_reservation(url: str, tmp_path: Path) -> None:
    book = tmp_path / "book"
    policy = Policy(retries=2, retry_pause=timedelta(milliseconds=10))
    script = f"echo $LEASEHOLD_EPOCH $LEASEHOLD_ATTEMPT >> {book}; [ $LEASEHOLD_ATTEMPT = 2 ]"
    status = once(url, "sh", "-c", script, policy=policy)
    assert (status.code, status.attempt) == (0, 2)
    assert book.read_text().splitlines() == ["1 1", "1 2"]
    book.unlink()
    status = once(url, "sh", "-c", f"echo >> {book}; exit 4", policy=policy)
    assert (status.code, status.attempt, len(book.read_text())) == (4, 3, 3)


def test_what_can_not_be_executed_is_not_tried_again(url: str, tmp_path: Path) -> None:
    policy = Policy(retries=5, retry_pause=timedelta(days=1))
    status = once(url, str(tmp_path / "missing"), policy=policy)
    assert (status.code, status.reason, status.attempt) == (127, ExitReason.NOT_EXECUTED, 1)
    assert f"{tmp_path}/missing' (looked for from {Path.cwd()})" in status.message


@pytest.mark.parametrize("on_crash", OnCrash)
@pytest.mark.parametrize(("first_line", "code"), [("#!/nowhere/sh", 127), ("no program", 126)])
def test_an_occurrence_that_could_not_be_executed_is_still_open(
    url: str, tmp_path: Path, first_line: str, code: int, on_crash: OnCrash
) -> None:
    policy = Policy(on_crash=on_crash)
    broken = tmp_path / "broken"
    broken.write_text(f"{first_line}\n")
    broken.chmod(0o755)
    assert once(url, str(broken), occurrence=AT_TWO, policy=policy).code == code
    (entry,) = log_of(url)
    assert (entry.outcome, entry.note.exit_code) == (Outcome.NO_RUN, code)
    again = once(url, "true", occurrence=AT_TWO, policy=policy)
    assert (again.code, again.reason) == (0, ExitReason.ENDED)


@pytest.mark.parametrize(
    ("script", "code", "limit_s"),
    # The second needs time to set its trap.
    [("sleep 60", 143, 0.2), ("trap 'exit 0' TERM; wait_", 124, 5.0)],
)
def test_one_that_takes_too_long_has_failed(
    url: str, script: str, code: int, limit_s: float
) -> None:
    loop = script.replace("wait_", "while :; do sleep 0.05; done")
    status = once(url, "sh", "-c", loop, timeouts=TIMEOUTS.with_timeout(limit_s))
    assert (status.code, status.reason) == (code, ExitReason.TIMED_OUT)
    assert log_of(url)[0].outcome is Outcome.FAILED


def test_what_was_left_running_is_told(start: Start) -> None:
    service = start("sh", "-c", "sleep 60 & exit 0")
    assert service.end().code == 0
    assert any("left running were stopped" in words for words in service.said)


def test_a_scheduled_one_whose_command_does_not_stop_does_not_speak_of_good_order(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The worker gives up long before the grace of the command is over.
    monkeypatch.setattr(scheduled, "_SPARE_S", 0.1 - TIMEOUTS.stop_timeout_s)
    ready, said, signals = tmp_path / "ready", list[str](), SignalQueue()
    loop = f"trap '' TERM; echo $$ > {ready}; while :; do sleep 0.05; done"
    wrapper = scheduled.ScheduledWrapper(
        plan(url, "sh", "-c", loop, standby=True),
        parse_schedule("every 1s"),
        signals=signals,
        clock=CLOCK,
        rng=random.Random(1),
        echo=said.append,
    )
    with ThreadPoolExecutor() as pool:
        running = pool.submit(wrapper.run)
        until(lambda: ready.exists() and ready.read_text().endswith("\n"))
        signals._on_signal(signal.SIGTERM, None)
        status = running.result(100)
    signals._on_signal(signal.SIGTERM, None)  # a second one kills at once
    until(lambda: any("run ended" in words for words in said))
    signals.close()
    assert (status.code, status.reason) == (137, ExitReason.STOPPED)
    assert "did not stop" in status.message


@pytest.mark.parametrize(
    ("rest", "code"),
    [({"if_held": IfHeld.WAIT}, 143), ({"standby": True}, 0)],
    ids=["wait", "standby"],
)
def test_a_signal_before_it_waits_is_not_forgotten(
    url: str, start: Start, tmp_path: Path, rest: dict[str, Any], code: int
) -> None:
    book = tmp_path / "book"
    start(*witness(book))
    written(book, 1)
    signals = SignalQueue()
    signals._on_signal(signal.SIGTERM, None)  # it hears already, and does not ask the store yet
    status = Threaded(plan=plan(url, *witness(book), **rest), signals=signals).end()
    signals.close()
    assert (status.code, status.reason) == (code, ExitReason.STOPPED)
    assert len(written(book, 1)) == 1


def test_a_signal_before_a_scheduled_one_stands_by_is_not_forgotten(
    url: str, tmp_path: Path
) -> None:
    book, signals = tmp_path / "book", SignalQueue()
    wrapper = scheduled.ScheduledWrapper(
        plan(url, *witness(book), standby=True),
        parse_schedule("every 1s"),
        signals=signals,
        clock=CLOCK,
        rng=random.Random(1),
        echo=lambda _words: None,
    )
    signals._on_signal(signal.SIGTERM, None)
    with ThreadPoolExecutor() as pool:
        status = pool.submit(wrapper.run).result(100)
    signals.close()
    assert (status.code, status.reason) == (0, ExitReason.STOPPED)
    assert not book.exists()


@pytest.mark.spec("J5")
def test_a_standby_takes_over_from_one_that_is_told_to_stop(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    first = start(*witness(book), standby=True)
    written(book, 1)
    second = start(*witness(book), standby=True)
    until(lambda: any("waiting" in words for words in second.said))
    first.signalled(signal.SIGTERM)
    assert [token for token, _ in written(book, 2)] == ["1", "2"]
    assert first.end().code == 143


def test_a_standby_that_loses_it_waits_for_it_again(url: str, start: Start, tmp_path: Path) -> None:
    book = tmp_path / "book"
    service = start(*witness(book), standby=True, lease_s=BRISK_S)
    written(book, 1)

    async def broken(store: Store) -> Resource | None:
        return await store.break_(job_key(JOB), epoch=1, after=timedelta(0))

    with_store(url, broken)
    assert [token for token, _ in written(book, 2)] == ["1", "2"]
    assert log_of(url)[1].outcome is Outcome.BROKEN
    assert any("was lost (broken)" in words for words in service.said)


def test_one_that_loses_it_stops_the_command_and_says_so(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    kill = replace(timeouts_of(BRISK_S), on_loss=OnLoss(kind=LossKind.KILL))
    service = start(*witness(book), timeouts=kill, lease_s=BRISK_S)
    written(book, 1)
    with_store(url, lambda store: store.break_(job_key(JOB), epoch=1, after=timedelta(0)))
    status = service.end()
    assert (status.code, status.reason) == (79, ExitReason.LOST)
    assert "killed" in status.message


def test_an_operator_gives_it_to_a_standby_and_sends_one_home(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    first = start(*witness(book), standby=True, lease_s=BRISK_S)
    written(book, 1)
    second = start(*witness(book), standby=True, lease_s=BRISK_S)
    until(lambda: any("waiting" in words for words in second.said))

    async def suggested(store: Store) -> None:
        me = log_of_holder(await store.resources("job"))
        (other,) = set(await store.members("job")) - {me}
        assert await store.request_hand_over(job_key(JOB), epoch=1, to=other)

    with_store(url, suggested)
    assert [token for token, _ in written(book, 2)] == ["1", "2"]
    until(lambda: any("waiting" in words for words in first.said))

    async def leave_requested(store: Store) -> None:
        assert await store.request_leave(log_of_holder(await store.resources("job")) or "")

    with_store(url, leave_requested)
    assert (second.end().code, second.end().reason) == (0, ExitReason.HANDED_OVER)
    assert [token for token, _ in written(book, 3)] == ["1", "2", "3"]
    assert [each.outcome for each in log_of(url)[1:]] == [Outcome.HANDED_OVER] * 2


def log_of_holder(resources: object) -> str | None:
    assert isinstance(resources, dict)
    found: Resource = resources[job_key(JOB)]
    return found.holder


def test_one_that_is_told_to_stop_while_it_waits_runs_nothing(
    url: str, start: Start, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    with_store(url, lambda store: pause(store, JOB, by="ann", clock=CLOCK))
    service = start("touch", str(ran), standby=True)
    until(lambda: any("paused" in words for words in service.said))
    service.signalled(signal.SIGTERM)
    status = service.end()
    assert (status.code, status.reason) == (0, ExitReason.STOPPED)
    assert not ran.exists()


def test_an_occurrence_that_a_later_one_has_overtaken_is_not_run(url: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    assert once(url, "true", occurrence=AT_TWO).code == 0
    earlier = once(url, "touch", str(ran), occurrence=AT_TWO - timedelta(days=1))
    assert earlier.reason is ExitReason.DONE
    assert "a later one (2026-01-31 02:00:00 UTC) is done" in earlier.message
    assert not ran.exists()
