"""A wrapper that lets go before its command was started: the occurrence is still open for all."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from tests.support.command_runs import CLOCK, until
from tests.support.command_wrappers import JOB, LEASE_S, Threaded, log_of, once, plan

from leasehold.errors import LeaseLost
from leasehold.jobs import OnCrash, Outcome, Policy, Reservation, reserve
from leasehold.jobs.claimant import Claimant
from leasehold.jobs.command import one_shot
from leasehold.jobs.command.exit_status import ExitReason, IfHeld
from leasehold.jobs.command.one_shot import Wrapper
from leasehold.jobs.command.signal_queue import SignalQueue
from leasehold.jobs.operator_requests import pause, resume
from leasehold.model import Ownership
from leasehold.ports import Store
from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

T = TypeVar("T")
AT_TWO = datetime(2026, 1, 31, 2, tzinfo=UTC)
AT_MOST_ONCE: dict[str, Any] = {"occurrence": AT_TWO, "policy": Policy(on_crash=OnCrash.ABANDON)}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def signals() -> Iterator[SignalQueue]:
    made = SignalQueue()
    yield made
    made.close()


def with_store(url: str, act: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_store(url) as store:
            return await act(store)

    return anyio.run(run)


def test_a_pause_that_comes_while_it_waits_costs_no_run(
    url: str, signals: SignalQueue, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    wait: dict[str, Any] = {"if_held": IfHeld.WAIT, **AT_MOST_ONCE}
    with reserve(JOB, store=url):
        patient = Threaded(plan=plan(url, "touch", str(ran), wait=None, **wait), signals=signals)
        until(lambda: len(with_store(url, lambda store: store.members("job"))) == 2)
        with_store(url, lambda store: pause(store, JOB, by="ann", clock=CLOCK))
    assert patient.end().reason is ExitReason.PAUSED
    for _ in range(2):
        assert once(url, "touch", str(ran), **wait).reason is ExitReason.PAUSED
    with_store(url, lambda store: resume(store, JOB, clock=CLOCK))
    assert once(url, "touch", str(ran), **AT_MOST_ONCE).code == 0
    assert ran.exists()
    newest, *older = log_of(url)
    assert (newest.outcome, newest.note.attempt) == (Outcome.OK, 1)
    assert [each.outcome for each in older] == [Outcome.NO_RUN, Outcome.OK]


def test_a_signal_right_after_the_claim_costs_no_run(
    url: str, signals: SignalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Claimant._open

    async def signalled(claimant: Claimant, won: Mapping[str, Ownership]) -> None:
        await opened(claimant, won)
        signals._on_signal(signal.SIGTERM, None)

    with monkeypatch.context() as patched:
        patched.setattr(Claimant, "_open", signalled)
        status = Threaded(plan=plan(url, "true", **AT_MOST_ONCE), signals=signals).end()
    assert (status.code, status.reason) == (143, ExitReason.STOPPED)
    assert "nothing was run" in status.message
    assert once(url, "true", **AT_MOST_ONCE).reason is ExitReason.ENDED
    newest, stopped = log_of(url)
    assert (newest.note.attempt, stopped.outcome) == (1, Outcome.NO_RUN)


@pytest.mark.parametrize(("losses", "code"), [(2, 0), (10_000, 69)])
def test_a_lease_that_is_lost_while_reserving_is_trouble_of_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch, losses: int, code: int
) -> None:
    take, lost = Claimant.take, list[LeaseLost]()

    async def slept(claimant: Claimant, *, wait_s: float | None) -> object:
        if len(lost) < losses:
            lost.append(LeaseLost("it slept too long", key="me", reason="local_deadline"))
            raise lost[-1]
        return await take(claimant, wait_s=wait_s)

    monkeypatch.setattr(Claimant, "take", slept)
    monkeypatch.setattr(one_shot, "_FIRST_PAUSE_S", 0.05)
    status = once(url, "true", lease_s=1.0 if code else LEASE_S, **AT_MOST_ONCE)
    assert status.code == code
    assert status.reason is (ExitReason.UNREACHABLE if code else ExitReason.ENDED)


def test_a_signal_between_two_attempts_does_not_say_that_nothing_was_run(
    url: str, signals: SignalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, asked = Wrapper._may_start, list[Reservation]()

    def signalled(wrapper: Wrapper, reservation: Reservation) -> bool:
        if asked:
            signals._on_signal(signal.SIGTERM, None)
        asked.append(reservation)
        return may_start(wrapper, reservation)

    monkeypatch.setattr(Wrapper, "_may_start", signalled)
    policy = Policy(retries=1, retry_pause=timedelta(milliseconds=10))
    status = Threaded(plan=plan(url, "sh", "-c", "exit 4", policy=policy), signals=signals).end()
    assert (status.code, status.reason, status.attempt) == (4, ExitReason.STOPPED, 1)
    (entry,) = log_of(url)
    assert (entry.outcome, entry.note.exit_code) == (Outcome.KILLED, 4)
    assert "nothing was run" not in entry.note.words + status.message
