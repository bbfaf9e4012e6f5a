"""``leasehold run`` as processes that are stopped, killed and cut off from their store."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from tests.support.command_runs import CLOCK, ROOT, TREE, alive, family, kill, until
from tests.support.command_wrappers import (
    JOB,
    LEASE_S,
    LEASEHOLD,
    SHORT_S,
    Alone,
    log_of,
    witness,
    written,
)
from tests.support.pausing import pause

from leasehold.jobs import Outcome
from leasehold.jobs.command.guard import processes
from leasehold.jobs.operator_requests import request_run
from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Alone]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as undo:

        def started(*options: str, command: list[str], lease_s: float = LEASE_S) -> Alone:
            made = Alone(url, tmp_path, *options, command=command, lease_s=lease_s)
            undo.callback(made.end)
            return made

        yield started


@pytest.mark.spec("J2", "B10")
def test_a_wrapper_that_is_stopped_for_longer_than_its_lease(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    # The command does not stop on SIGTERM: the guard has to kill it, in time for the next one.
    stubborn = witness(book, "trap '' TERM; while :; do sleep 0.1; done")
    first = start("--if-held", "fail", command=stubborn, lease_s=SHORT_S)
    written(book, 1)
    second = start("--standby", command=witness(book))
    second.says("waiting")
    pause(first.popen.pid, url)
    (_, _), (token, _) = written(book, 2)
    assert token == "2"  # and not TWO: the first command was gone
    first.send(signal.SIGCONT)
    assert first.code() == 79
    assert "was lost" in first.said
    assert [each.outcome for each in log_of(url)] == [None, Outcome.EXPIRED]


def test_kill_9_of_the_wrapper_ends_the_command_long_before_its_lease_ends(
    url: str, start: Start, tmp_path: Path
) -> None:
    wrapper = start(command=[*TREE, str(tmp_path / "family")], lease_s=3600.0)
    everyone = family(tmp_path / "family")
    wrapper.popen.kill()
    until(lambda: not alive(everyone))
    with left_of_leases(url) as left_s:
        assert left_s() > 3000.0


def test_kill_9_of_the_wrapper_ends_the_whole_family_and_a_standby_takes_over(
    start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    first = start("--standby", command=[*TREE, str(tmp_path / "family")], lease_s=SHORT_S)
    everyone = family(tmp_path / "family")
    second = start("--standby", command=witness(book))
    second.says("waiting")
    first.popen.kill()
    until(lambda: not alive(everyone))
    assert [token for token, _ in written(book, 1)] == ["2"]


def test_kill_9_of_the_guard_ends_the_whole_family_too(
    url: str, start: Start, tmp_path: Path
) -> None:
    wrapper = start(command=[*TREE, str(tmp_path / "family")])
    everyone = family(tmp_path / "family")
    guard = processes()[everyone[0]].parent
    assert processes()[guard].parent == wrapper.popen.pid
    kill([guard])
    assert wrapper.code() == 137
    assert alive(everyone) == []
    assert "guard of the command was killed" in wrapper.said
    assert log_of(url)[0].outcome is Outcome.CRASHED


def test_kill_9_of_the_wrapper_ends_the_family_of_a_guard_that_is_stopped(
    start: Start, tmp_path: Path
) -> None:
    wrapper = start(command=[*TREE, str(tmp_path / "family")])
    everyone = family(tmp_path / "family")
    os.kill(processes()[everyone[0]].parent, signal.SIGSTOP)
    wrapper.popen.kill()
    until(lambda: not alive(everyone))


@pytest.mark.spec("J2")
def test_a_command_that_stops_its_guard_is_gone_when_others_are_let_in(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    loop = "for each in $(seq 2000); do kill -STOP $PPID; sleep 0.05; done"
    wrapper = start(command=witness(book, f"trap '' TERM; {loop}"), lease_s=SHORT_S)
    ((_, pid),) = written(book, 1)
    with left_of_leases(url) as left_s, away(tmp_path / "leases.db"):
        until(lambda: not alive([pid]))
        assert left_s() > 0  # nobody can have been let in
    assert wrapper.code() == 79


@contextmanager
def away(database: Path) -> Iterator[None]:
    """Nobody can write meanwhile, and all can read."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=100)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_descriptors_that_are_closed_stay_closed_and_do_no_harm(
    url: str, tmp_path: Path, closed: str
) -> None:
    told = tmp_path / "told"
    # Longer than a renewal takes to come: then the guard moves its deadline.
    script = "sleep 1.3; for each in 0 1 2; do test -e /proc/$$/fd/$each || echo $each; done"
    words = f"{LEASEHOLD} run --job j --store {url} --lease {SHORT_S}s"
    line = f"exec {words} -- sh -c '({script}) 9> {told} >&9' {closed}"
    assert subprocess.run(["sh", "-c", line], cwd=ROOT, check=False, timeout=100).returncode == 0
    assert len(told.read_text().splitlines()) == closed.count("-")


@pytest.mark.parametrize(("where", "more"), [("2>/dev/full", ""), ("2>&-", "--json")])
def test_errors_that_nobody_can_hear_change_nothing(
    url: str, tmp_path: Path, where: str, more: str
) -> None:
    book = tmp_path / "book"
    words = f"{LEASEHOLD} run --job j --store {url} --lease 60s --retry 1:10ms {more}"
    line = f"exec {words} -- sh -c 'echo >> {book}; exit 7' {where}"
    assert subprocess.run(["sh", "-c", line], cwd=ROOT, check=False, timeout=100).returncode == 7
    assert book.read_text() == "\n\n"


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_command_has_the_locale_that_was_given_and_no_other(
    url: str, given: dict[str, str]
) -> None:
    words = ["run", "--job", "j", "--store", url, "--lease", "60s", "--", "/usr/bin/env"]
    ran = subprocess.run(
        [LEASEHOLD, *words], env=given, cwd=ROOT, check=True, timeout=100, capture_output=True
    )
    names = {line.partition("=")[0] for line in ran.stdout.decode().splitlines()}
    assert {name for name in names if not name.startswith("LEASEHOLD_")} == set(given)


@pytest.mark.spec("J5")
def test_sigterm_lets_a_standby_take_over_at_once(url: str, start: Start, tmp_path: Path) -> None:
    book = tmp_path / "book"
    first = start("--standby", command=witness(book))
    written(book, 1)
    second = start("--standby", command=witness(book))
    second.says("waiting")
    first.send(signal.SIGTERM)
    assert [token for token, _ in written(book, 2)] == ["1", "2"]
    assert first.code() == 143
    stopped = log_of(url)[1]
    assert (stopped.outcome, stopped.note.exit_code) == (Outcome.KILLED, 143)
    second.send(signal.SIGTERM)
    assert second.code() == 143


def test_sigterm_ends_one_that_waits(start: Start, tmp_path: Path) -> None:
    book = tmp_path / "book"
    start(command=witness(book))
    written(book, 1)
    standby = start("--standby", command=witness(book))
    waiting = start("--if-held", "wait", "--json", command=witness(book))
    standby.says("waiting")
    for each in (standby, waiting):
        until(lambda each=each: signal.SIGTERM in _caught(each.popen.pid))  # type: ignore[misc]
        each.send(signal.SIGTERM)
    assert (standby.code(), waiting.code()) == (0, 143)
    assert '"reason": "stopped"' in waiting.said


@pytest.mark.spec("J2", "J7")
@pytest.mark.parametrize(("lease_s", "code"), [(10.0, 3), (SHORT_S, 79)])
def test_a_store_that_is_away_for_a_while(
    url: str, start: Start, tmp_path: Path, lease_s: float, code: int
) -> None:
    book, go_on = tmp_path / "book", tmp_path / "go_on"
    loop = f"while [ ! -e {go_on} ]; do sleep 0.05; done; exit 3"
    wrapper = start(command=witness(book, loop), lease_s=lease_s)
    ((_, pid),) = written(book, 1)
    with left_of_leases(url) as left_s:
        with away(tmp_path / "leases.db"):
            if code == 3:  # a renewal is due at three quarters of the lease, and does not come
                until(lambda: left_s() < 0.7 * lease_s)
            else:
                until(lambda: not alive([pid]))
                assert left_s() > 0  # gone before anybody could have had it
        if code == 3:
            until(lambda: left_s() > 0.7 * lease_s)
            assert alive([pid])
    go_on.touch()
    assert wrapper.code() == code
    assert (log_of(url)[0].outcome is Outcome.FAILED) == (code == 3)


@contextmanager
def left_of_leases(url: str) -> Iterator[Callable[[], float]]:
    """Asks how many seconds are left of the lease that ends last, also while nobody can write."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_store(url)) as store,
    ):

        def left_s() -> float:
            found = portal.call(store.members, "job").values()
            return max((each.remaining_s for each in found), default=0.0)

        yield left_s


def test_real_signals_reach_the_command(start: Start, tmp_path: Path) -> None:
    book, told = tmp_path / "book", tmp_path / "told"
    traps = "; ".join(f"trap 'echo {name} >> {told}' {name}" for name in ("HUP", "USR1", "INT"))
    wrapper = start(command=["sh", "-c", f"{traps}; {_then(book)}"])
    written(book, 1)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
        wrapper.send(number)
        name = number.name.removeprefix("SIG")
        until(lambda name=name: told.exists() and name in told.read_text())  # type: ignore[misc]
    assert wrapper.popen.poll() is None
    wrapper.send(signal.SIGTERM)
    assert wrapper.code() == 143


def _then(book: Path) -> str:
    return f"echo 1 $$ >> {book}; while :; do sleep 0.05; done"


def test_what_was_ignored_stays_ignored_and_nothing_else(url: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    words = f"{LEASEHOLD} run --job j --store {url} --lease 60s"
    script = f"trap '' HUP; exec {words} -- cp /proc/self/status {told}"
    subprocess.run(["sh", "-c", script], cwd=ROOT, check=True, timeout=100)
    assert _signals(told.read_text(), "SigIgn") & _ASKED == {signal.SIGHUP}
    assert _signals(told.read_text(), "SigBlk") == set()


_ASKED = {
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGTSTP,
}


def _caught(pid: int) -> set[int]:
    return _signals(Path(f"/proc/{pid}/status").read_text(encoding="ascii"), "SigCgt")


def _signals(status: str, name: str) -> set[int]:
    (line,) = [line for line in status.splitlines() if line.startswith(name)]
    mask = int(line.split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.spec("J6")
def test_a_schedule_is_run_once_over_two_nodes(start: Start, tmp_path: Path) -> None:
    book = tmp_path / "book"
    # It ends in order also if it is told to stop: else its occurrence would be run again.
    script = f"""trap '' TERM; echo "$LEASEHOLD_OCCURRENCE $LEASEHOLD_EPOCH" >> {book}"""
    command = ["sh", "-c", script]
    nodes = [start("--every", "1s", "--standby", command=command) for _ in range(2)]

    def occurrences() -> list[str]:
        return [line.split()[0] for line in book.read_text().splitlines()] if book.exists() else []

    until(lambda: len(occurrences()) >= 2)
    nodes[0].send(signal.SIGTERM)
    assert nodes[0].code() == 0
    more = len(occurrences()) + 1
    until(lambda: len(occurrences()) >= more)
    nodes[1].send(signal.SIGTERM)
    assert nodes[1].code() == 0
    assert len(set(occurrences())) == len(occurrences())


def test_a_scheduled_run_that_is_stopped_is_run_by_the_next_node(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    script = f'echo "$LEASEHOLD_OCCURRENCE $LEASEHOLD_ATTEMPT" >> {book}; exec sleep 600'
    first = start("--every", "1s", "--standby", command=["sh", "-c", script])
    until(lambda: book.exists() and book.read_text().endswith("\n"))
    start("--every", "1s", "--standby", command=["sh", "-c", script]).says("standing by")
    first.send(signal.SIGTERM)
    assert first.code() == 0
    until(lambda: book.read_text().count("\n") == 2)
    (moment, one), (again, two) = (line.split() for line in book.read_text().splitlines())
    assert (moment, one, two) == (again, "1", "2")
    assert Outcome.HANDED_OVER in {each.outcome for each in log_of(url)}


def test_a_scheduled_command_that_lives_through_sigint_is_stopped_and_released(
    url: str, start: Start, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    script = f"trap : INT; touch {ready}; while :; do sleep 0.05; done"
    node = start("--every", "1s", "--standby", command=["sh", "-c", script])
    until(ready.exists)
    node.send(signal.SIGINT)
    assert node.code() == 0
    newest = log_of(url)[0]
    assert (newest.outcome, newest.note.exit_code) == (Outcome.HANDED_OVER, 143)


def test_a_scheduled_run_that_can_not_be_executed_is_run_by_a_node_that_can(
    url: str, start: Start, tmp_path: Path
) -> None:
    broken, book = tmp_path / "broken", tmp_path / "book"
    broken.write_text("#!/nowhere/sh\n")
    broken.chmod(0o755)
    first = start("--every", "1s", "--standby", command=[str(broken)])
    assert first.code() == 127
    assert f"interpreter of '{broken}'" in first.said
    (left,) = [each for each in log_of(url) if each.note.exit_code == 127]
    assert left.outcome is Outcome.HANDED_OVER
    script = f'echo "$LEASEHOLD_OCCURRENCE" >> {book}; exec sleep 600'
    start("--every", "1s", "--standby", command=["sh", "-c", script])
    until(lambda: book.exists() and book.read_text().endswith("\n"))
    assert left.note.occurrence is not None
    assert book.read_text() == f"{left.note.occurrence.isoformat()}\n"


def test_a_run_that_an_operator_asks_for_is_run_once_without_an_occurrence(
    url: str, start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"

    async def ask() -> None:
        async with open_store(url) as store:
            await request_run(store, JOB, by="ann", clock=CLOCK)

    anyio.run(ask)
    script = f'echo "[$LEASEHOLD_OCCURRENCE]" >> {book}'
    node = start("--cron", "0 0 1 1 *", "--standby", command=["sh", "-c", script])
    node.says("run ended: exit code 0")
    assert book.read_text() == "[]\n"
    until(lambda: 0 in [each.note.exit_code for each in log_of(url)])
