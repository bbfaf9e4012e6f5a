"""Wakeups and the watcher of a stream, without a log: the journal is played by the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable, UnknownStream, UsageError
from leasehold.log import stream_watcher as watch_module
from leasehold.log.stream_watcher import Changes, StreamWatcher, Wakeup, WakeupOrigin

pytestmark = pytest.mark.anyio

SOON_S = 120


class Journal:
    """What the watcher asks: the answers are said by the test, in their order."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.answers: list[Changes | Exception] = []
        self._changed = threading.Condition()

    def changes(self, after: int | None) -> Changes:
        with self._changed:
            self.asked.append(after)
            self._changed.notify_all()
            answer = self.answers.pop(0) if self.answers else (after or 0, frozenset())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(self, times: int) -> None:
        """Until it was asked so many times more."""
        with self._changed:
            wanted = len(self.asked) + times
            assert self._changed.wait_for(lambda: len(self.asked) >= wanted, SOON_S)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
async def watcher(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StreamWatcher]:
    monkeypatch.setattr(watch_module, "SHORTEST_S", 0.001)
    monkeypatch.setattr(watch_module, "LONGEST_S", 0.01)
    monkeypatch.setattr(watch_module, "IDLE_POLL_S", 0.005)
    made = watcher_over(journal)
    yield made
    made.close()


def watcher_over(journal: Journal, check: Callable[[], object] = lambda: None) -> StreamWatcher:
    return StreamWatcher(
        "leasehold-watch-test", changes=journal.changes, check=check, clock=SystemClock()
    )


async def notified(wakeup: Wakeup) -> bool:
    """Wait for it; say whether it asks for a fresh look."""
    with anyio.fail_after(SOON_S):
        await wakeup.wait(3600.0)
    return wakeup.clear()


async def test_a_notification_before_the_wait_counts_and_clear_forgets_it() -> None:
    wakeup = Wakeup("0")
    await asyncio.to_thread(wakeup.notify, fresh=True)
    assert await notified(wakeup)

    await wakeup.wait(0.001)  # only the time has passed
    assert not wakeup.clear()


def test_a_wakeup_whose_loop_has_ended_can_be_notified() -> None:
    async def made() -> Wakeup:
        return Wakeup("0")

    asyncio.run(made()).notify()


async def test_those_are_notified_whose_partition_the_journal_names(
    watcher: StreamWatcher, journal: Journal
) -> None:
    wakeups = [Wakeup(str(number)) for number in range(3)]
    journal.answers.append((7, None))
    for wakeup in wakeups:
        watcher.add(wakeup)
    with watcher.waiting(wakeups[0]):
        journal.answers.append((9, frozenset({"/orders/1/00000000000000000000.seg"})))
        assert await notified(wakeups[1])  # also one that does not sleep yet
        journal.wait(2)
        assert not wakeups[0].clear()
        assert not wakeups[2].clear()

    assert journal.asked[:3] == [None, 7, 9] or journal.asked[:2] == [None, 7]
    assert journal.asked[-1] == 9


async def test_all_are_notified_when_the_journal_has_no_paths(
    watcher: StreamWatcher, journal: Journal
) -> None:
    wakeups = [Wakeup("0"), Wakeup("1")]
    for wakeup in wakeups:
        watcher.add(wakeup)
    with watcher.waiting(wakeups[0]):
        journal.answers.append((10**9, None))
        assert [await notified(wakeup) for wakeup in wakeups] == [True, True]


async def test_a_store_that_does_not_answer_is_asked_again_from_the_same_line(
    watcher: StreamWatcher, journal: Journal
) -> None:
    wakeup = Wakeup("0")
    journal.answers.append((5, None))
    watcher.add(wakeup)
    with watcher.waiting(wakeup):
        journal.answers += [StoreUnavailable("away"), StoreUnavailable("away")]
        journal.answers.append((6, frozenset({"/orders/0/00000000000000000000.seg"})))
        assert await notified(wakeup)
    assert journal.asked[-1] in {5, 6}
    assert 6 not in journal.asked[: journal.asked.index(5) + 3]


@pytest.mark.parametrize("trouble", [UnknownStream("gone"), UsageError("closed")])
async def test_all_are_notified_when_there_is_nothing_to_wait_for(
    journal: Journal, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "IDLE_POLL_S", 0.005)

    def check() -> None:
        raise trouble

    watcher = watcher_over(journal, check)
    wakeup = Wakeup("0")
    watcher.add(wakeup)
    with watcher.waiting(wakeup):
        assert await notified(wakeup)
    watcher.close()


async def test_the_pauses_grow_while_nothing_happens_and_begin_anew_when_something_does(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "LONGEST_S", 3600.0)
    watcher = watcher_over(journal)
    blind, other = Wakeup("0"), Wakeup("1")
    watcher.add(blind)
    watcher.add(other)
    with watcher.waiting(blind):
        journal.wait(2)
        assert watcher.pause_s > watch_module.SHORTEST_S
        other.origin = WakeupOrigin.KERNEL  # it had an open segment, and comes to its end
        other.paths = ("there",)
        assert not watcher.watch(other, (), remote=False)
        assert other.origin is WakeupOrigin.JOURNAL
        journal.wait(1)
    watcher.close()


async def test_one_that_was_removed_watches_nothing(watcher: StreamWatcher) -> None:
    wakeup = Wakeup("0")
    watcher.add(wakeup)
    assert watcher.watch(wakeup, (__file__,), remote=False)
    assert not watcher.watch(wakeup, (__file__,), remote=False)  # that is done already
    watcher.remove(wakeup)

    assert wakeup.watch_ids == ()
    assert not watcher.watch(wakeup, (__file__,), remote=False)
    assert wakeup.watch_ids == ()


async def test_a_closed_watcher_notifies_all_and_accepts_no_wakeup(journal: Journal) -> None:
    watcher = watcher_over(journal)
    wakeup = Wakeup("0")
    watcher.add(wakeup)
    watcher.close()
    watcher.close()

    assert not await notified(wakeup)
    with pytest.raises(UsageError, match="closed"):
        watcher.add(Wakeup("1"))
    assert not watcher.watch(wakeup, (__file__,), remote=False)
    with watcher.waiting(wakeup):
        assert not [each for each in threading.enumerate() if each.name == "leasehold-watch-test"]
    watcher.remove(wakeup)
