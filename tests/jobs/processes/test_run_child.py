"""A command under its guard: real processes, real signals; the reservation is a clock."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.command_runs import (
    CLOCK,
    TREE,
    ByClock,
    Under,
    alive,
    belled,
    family,
    kill,
    until,
)

from leasehold.jobs.command import command_run
from leasehold.jobs.command.child import Child, Deadline
from leasehold.jobs.command.command_run import CommandTimeouts, LossKind, OnLoss
from leasehold.jobs.command.guard import processes

pytestmark = pytest.mark.timeout(300)

LONG = CommandTimeouts(lease_s=600.0, stop_margin_s=120.0, stop_timeout_s=300.0)
NEVER = Deadline(term_at_s=math.inf, kill_at_s=math.inf)

Start = Callable[..., Under]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a command; at the end of the test nothing of it is left."""
    with ExitStack() as undo:
        signals = undo.enter_context(belled())

        def started(
            *command: str, handle: ByClock | None = None, timeouts: CommandTimeouts = LONG
        ) -> Under:
            held = handle or ByClock.lasting(500.0)
            made = Under(command=list(command), handle=held, timeouts=timeouts, signals=signals)
            undo.callback(made.end)
            undo.callback(_broken, held)
            undo.callback(held.lose)
            return made

        yield started


def _broken(handle: ByClock) -> None:
    handle.until_s = 0.0


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_exit_code_is_that_of_the_command(start: Start, script: str, code: int) -> None:
    ended = start(*shell(script)).end()
    assert (ended.exit_code, ended.lost, ended.timed_out, ended.killed) == (
        code,
        None,
        False,
        False,
    )


def test_what_can_not_be_executed_has_the_codes_of_a_shell(start: Start, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert start(str(tmp_path / "missing")).end().exit_code == 127
    assert start(str(plain)).end().exit_code == 126


def test_it_runs_in_a_session_of_its_own_and_reads_and_writes_as_we_do(
    start: Start, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    under = start(*shell(f"cat /proc/$$/stat > {told}; trap : INT; echo $$ >> {told}"))
    assert under.end().exit_code == 0
    stat, pid = told.read_text().splitlines()
    _state, _parent, group, session, *_ = stat.rpartition(")")[2].split()
    assert group == session == pid == str(under.pids[0])


def test_all_of_a_family_are_killed_and_only_then_it_is_gone(start: Start, tmp_path: Path) -> None:
    under = start(*TREE, str(tmp_path / "family"))
    everyone = family(tmp_path / "family")
    known = processes()
    assert len({known[pid].session for pid in everyone}) == 2
    under.handle.lose()
    _broken(under.handle)
    ended = under.end()
    assert alive(everyone) == []
    assert (ended.lost, ended.exit_code) == ("broken", 137)


def test_the_guard_kills_at_the_deadline_though_nobody_asks_it(tmp_path: Path) -> None:
    child = Child([*TREE, str(tmp_path / "family")], environment=os.environ, deadline=NEVER)
    try:
        everyone = family(tmp_path / "family")
        assert alive(everyone) == everyone
        now_s = CLOCK.boottime_s()
        deadline = Deadline(term_at_s=now_s + 0.1, kill_at_s=now_s + 0.3)
        child.extend(deadline)
        while not child.gone:
            child.read()
        assert alive(everyone) == []
        assert CLOCK.boottime_s() >= deadline.kill_at_s
    finally:
        child.close()


def test_nothing_is_started_after_the_deadline(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    late = Deadline(term_at_s=0.0, kill_at_s=0.0)
    child = Child(["touch", str(ran)], environment=os.environ, deadline=late)
    try:
        while not child.gone:
            child.read()
        assert (child.exit_code, child.pid) == (137, 0)
        assert not ran.exists()
    finally:
        child.close()


def test_a_deadline_that_moves_is_kept_where_it_has_moved_to(tmp_path: Path) -> None:
    ready, go_on = tmp_path / "ready", tmp_path / "go_on"
    script = f"touch {ready}; while [ ! -e {go_on} ]; do sleep 0.05; done"
    child = Child(shell(script), environment=os.environ, deadline=NEVER)
    try:
        until(ready.exists)
        near_s = CLOCK.boottime_s() + 1.5
        child.extend(Deadline(term_at_s=math.inf, kill_at_s=near_s))
        child.extend(Deadline(term_at_s=math.inf, kill_at_s=near_s + 300))
        until(lambda: CLOCK.boottime_s() > near_s + 0.1)
        go_on.touch()
        while not child.gone:
            child.read()
        assert child.exit_code == 0
    finally:
        child.close()


def test_when_the_wrapper_is_gone_all_are_killed(tmp_path: Path) -> None:
    child = Child([*TREE, str(tmp_path / "family")], environment=os.environ, deadline=NEVER)
    everyone = family(tmp_path / "family")
    child.close()
    assert alive(everyone) == []


def test_when_the_guard_is_killed_the_session_is_killed(tmp_path: Path) -> None:
    child = Child([*TREE, str(tmp_path / "family")], environment=os.environ, deadline=NEVER)
    everyone = family(tmp_path / "family")
    try:
        child.read()
        child._guard.kill()
        while not child.gone:
            child.read()
        *session, daemon = everyone
        assert alive(session) == []
        assert child.exit_code == 137
        assert alive([daemon])  # nobody adopts for this process; the command line does
    finally:
        child.close()
        kill(everyone)


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(
    start: Start, tmp_path: Path
) -> None:
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0, stop_timeout_s=0.1)
    under = start(*TREE, str(tmp_path / "family"), timeouts=timeouts)
    family(tmp_path / "family")
    under.signalled(signal.SIGTERM)
    ended = under.end()
    assert (ended.stopped_by, ended.killed, ended.exit_code) == (signal.SIGTERM, True, 137)


def test_a_second_sigterm_kills_at_once(start: Start, tmp_path: Path) -> None:
    under = start(*TREE, str(tmp_path / "family"))
    everyone = family(tmp_path / "family")

    def is_over() -> bool:
        under.signalled(signal.SIGTERM)
        return under.ended is not None

    until(is_over)
    assert under.end().killed
    assert alive(everyone) == []


def test_a_sigterm_that_comes_doubled_is_one(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """timeout(1) signals a process, and then its group."""
    monkeypatch.setattr(command_run, "_SAME_SIGNAL_S", 60.0)
    ready = tmp_path / "ready"
    script = f"trap 'sleep 0.1; exit 5' TERM; touch {ready}; while :; do sleep 0.05; done"
    under = start(*shell(script))
    until(ready.exists)
    under.signalled(signal.SIGTERM)
    under.signalled(signal.SIGTERM)
    ended = under.end()
    assert (ended.killed, ended.exit_code) == (False, 5)


@pytest.mark.parametrize("name", ["INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"])
def test_signals_are_passed_on_to_the_command(start: Start, tmp_path: Path, name: str) -> None:
    ready, told = tmp_path / "ready", tmp_path / "told"
    script = (
        f"trap 'echo {name} > {told}; exit 3' {name}; touch {ready}; while :; do sleep 0.05; done"
    )
    under = start(*shell(script))
    until(ready.exists)
    under.signalled(getattr(signal, f"SIG{name}"))
    assert under.end().exit_code == 3
    assert told.read_text() == f"{name}\n"


def test_ctrl_z_stops_the_command_and_not_the_reservation(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    # No loop of commands: a shell that is starting one when it is stopped is in state "D".
    under = start(*shell(f"touch {ready}; exec sleep 600"))
    until(lambda: ready.exists() and bool(under.pids))
    under.signalled(signal.SIGTSTP)
    until(lambda: _state(under.pids[0]) == "T")
    under.signalled(signal.SIGCONT)
    until(lambda: _state(under.pids[0]) != "T")
    under.signalled(signal.SIGTSTP)
    until(lambda: _state(under.pids[0]) == "T")
    under.signalled(signal.SIGTERM)  # one that is stopped hears it all the same
    assert under.end().exit_code == 143


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def test_what_the_command_leaves_behind_is_ended_before_it_is_gone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_run, "_SETTLE_S", 0.1)
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0, stop_timeout_s=0.2)
    under = start(*shell("trap '' TERM; sleep 600 & exit 5"), timeouts=timeouts)
    ended = under.end()
    assert (ended.exit_code, ended.killed, ended.left_behind) == (5, False, True)
    left = [pid for pid, each in processes().items() if each.session == under.pids[0]]
    assert left == []


def test_what_ends_soon_after_the_command_was_not_left_behind(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_run, "_SETTLE_S", 60.0)
    ended = start(*shell("sleep 0.2 & exit 5")).end()
    assert (ended.exit_code, ended.left_behind) == (5, False)


@pytest.mark.parametrize("kind", [LossKind.STOP, LossKind.KILL])
def test_a_guard_that_can_not_be_woken_keeps_nothing_alive(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: LossKind
) -> None:
    monkeypatch.setattr(Child, "_wake", lambda _child: None)
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0, on_loss=OnLoss(kind=kind))
    under = start(*TREE, str(tmp_path / "family"), timeouts=timeouts)
    everyone = family(tmp_path / "family")
    os.kill(processes()[everyone[0]].parent, signal.SIGSTOP)
    under.handle.until_s = CLOCK.boottime_s() + 0.3
    under.handle.lose()
    assert under.end().exit_code == 137
    assert alive(everyone) == []


def test_a_guard_that_was_stopped_goes_on_with_the_next_order(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    under = start(*shell(f"trap 'exit 3' TERM; touch {ready}; while :; do sleep 0.05; done"))
    until(lambda: ready.exists() and bool(under.pids))
    guard = processes()[under.pids[0]].parent
    os.kill(guard, signal.SIGSTOP)
    until(lambda: _state(guard) == "T")
    under.signalled(signal.SIGTERM)
    assert under.end().exit_code == 3


def test_a_command_that_lives_through_sigint_can_still_be_asked_to_stop(
    start: Start, tmp_path: Path
) -> None:
    ready, told = tmp_path / "ready", tmp_path / "told"
    script = f"trap 'touch {told}' INT; touch {ready}; while :; do sleep 0.05; done"
    under = start(*shell(script))
    until(ready.exists)
    under.signalled(signal.SIGINT)
    until(told.exists)
    under.running.request_stop()
    ended = under.end()
    assert (ended.exit_code, ended.stopped_by) == (143, signal.SIGINT)


def test_one_that_takes_too_long_is_stopped(start: Start) -> None:
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0).with_timeout(0.2)
    ended = start("sleep", "600", timeouts=timeouts).end()
    assert (ended.timed_out, ended.exit_code, ended.lost) == (True, 143, None)


def test_the_pipe_of_the_deadline_ends_when_the_job_is_lost(start: Start, tmp_path: Path) -> None:
    ready, told = tmp_path / "ready", tmp_path / "told"
    script = (
        "import os, pathlib, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "end = os.read(int(os.environ['LEASEHOLD_LOST_FD']), 1)\n"
        f"pathlib.Path({str(told)!r}).write_text(repr(end))\n"
    )
    under = start(sys.executable, "-I", "-S", "-c", script)
    until(ready.exists)
    under.handle.lose()
    ended = under.end()
    assert told.read_text() == "b''"
    assert (ended.exit_code, ended.lost) == (0, "broken")


def test_warn_only_tells_the_command(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0, on_loss=OnLoss(kind=LossKind.WARN))
    script = f'touch {ready}; eval "read line <&$LEASEHOLD_LOST_FD"; exit 4'
    under = start("bash", "-c", script, timeouts=timeouts)
    until(ready.exists)
    under.handle.lose()
    _broken(under.handle)
    assert under.end().exit_code == 4


def test_kill_does_not_wait_for_an_orderly_end(start: Start, tmp_path: Path) -> None:
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0, on_loss=OnLoss(kind=LossKind.KILL))
    under = start(*TREE, str(tmp_path / "family"), timeouts=timeouts)
    everyone = family(tmp_path / "family")
    under.handle.lose()
    assert under.end().killed
    assert alive(everyone) == []


def test_a_command_of_the_users_runs_at_a_loss(start: Start, tmp_path: Path) -> None:
    ready, told = tmp_path / "ready", tmp_path / "told"
    loss = OnLoss(kind=LossKind.COMMAND, command=f"echo $LEASEHOLD_CHILD_PID > {told}")
    timeouts = CommandTimeouts(lease_s=60.0, stop_margin_s=12.0, on_loss=loss)
    under = start(*shell(f"touch {ready}; exec sleep 600"), timeouts=timeouts)
    until(ready.exists)
    until(lambda: bool(under.pids))
    under.handle.lose()
    ended = under.end()
    assert told.read_text() == f"{under.pids[0]}\n"
    assert (ended.exit_code, ended.killed) == (143, False)
