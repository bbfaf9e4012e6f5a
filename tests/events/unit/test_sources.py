"""Parts of the sources that need no log: the bell, the watcher, dead letters as records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import anyio
import pytest

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable, UnknownStream, UsageError
from leasehold.events import DeadLetter, Event
from leasehold.events.dead_letters import MAX_REASON_BYTES, MAX_TRACEBACK_BYTES
from leasehold.log import stream_watcher as watch_module
from leasehold.log.stream_watcher import Changes, StreamWatcher, Wakeup, WakeupOrigin
from leasehold.runtime.tracebacks import reason_of, traceback_of

pytestmark = pytest.mark.anyio

SOON_S = 120
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


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
    monkeypatch.setattr(watch_module, "CALM_S", 0.005)
    made = watcher_over(journal)
    yield made
    made.close()


def watcher_over(journal: Journal, check: Callable[[], object] = lambda: None) -> StreamWatcher:
    return StreamWatcher(
        "leasehold-watch-test", changes=journal.changes, check=check, clock=SystemClock()
    )


async def rung(bell: Wakeup) -> bool:
    """Wait for it; say whether it asks for a fresh look."""
    with anyio.fail_after(SOON_S):
        await bell.wait(3600.0)
    return bell.still()


async def test_a_ring_before_the_wait_is_heard_and_after_still_it_is_forgotten() -> None:
    bell = Wakeup("0")
    await asyncio.to_thread(bell.ring, fresh=True)
    assert await rung(bell)

    await bell.wait(0.001)  # only the time has passed
    assert not bell.still()


def test_a_bell_whose_loop_has_ended_is_rung_in_vain() -> None:
    async def made() -> Wakeup:
        return Wakeup("0")

    asyncio.run(made()).ring()


async def test_those_are_rung_whose_partition_the_journal_names(
    watcher: StreamWatcher, journal: Journal
) -> None:
    bells = [Wakeup(str(number)) for number in range(3)]
    journal.answers.append((7, None))
    for bell in bells:
        watcher.enter(bell)
    with watcher.asleep(bells[0]):
        journal.answers.append((9, frozenset({"/orders/1/00000000000000000000.seg"})))
        assert await rung(bells[1])  # also one that does not sleep yet
        journal.wait(2)
        assert not bells[0].still()
        assert not bells[2].still()

    assert journal.asked[:3] == [None, 7, 9] or journal.asked[:2] == [None, 7]
    assert journal.asked[-1] == 9


async def test_all_are_rung_when_the_journal_can_not_tell_the_paths(
    watcher: StreamWatcher, journal: Journal
) -> None:
    bells = [Wakeup("0"), Wakeup("1")]
    for bell in bells:
        watcher.enter(bell)
    with watcher.asleep(bells[0]):
        journal.answers.append((10**9, None))
        assert [await rung(bell) for bell in bells] == [True, True]


async def test_a_store_that_does_not_answer_is_asked_again_from_the_same_line(
    watcher: StreamWatcher, journal: Journal
) -> None:
    bell = Wakeup("0")
    journal.answers.append((5, None))
    watcher.enter(bell)
    with watcher.asleep(bell):
        journal.answers += [StoreUnavailable("away"), StoreUnavailable("away")]
        journal.answers.append((6, frozenset({"/orders/0/00000000000000000000.seg"})))
        assert await rung(bell)
    assert journal.asked[-1] in {5, 6}
    assert 6 not in journal.asked[: journal.asked.index(5) + 3]


@pytest.mark.parametrize("trouble", [UnknownStream("gone"), UsageError("closed")])
async def test_all_are_rung_to_find_out_that_there_is_nothing_to_wait_for(
    journal: Journal, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "CALM_S", 0.005)

    def check() -> None:
        raise trouble

    watcher = watcher_over(journal, check)
    bell = Wakeup("0")
    watcher.enter(bell)
    with watcher.asleep(bell):
        assert await rung(bell)
    watcher.close()


async def test_the_pauses_grow_while_nothing_happens_and_begin_anew_when_something_does(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "LONGEST_S", 3600.0)
    watcher = watcher_over(journal)
    blind, other = Wakeup("0"), Wakeup("1")
    watcher.enter(blind)
    watcher.enter(other)
    with watcher.asleep(blind):
        journal.wait(2)
        assert watcher.pause_s > watch_module.SHORTEST_S
        other.sight = WakeupOrigin.KERNEL  # it had an open segment, and comes to its end
        other.paths = ("there",)
        assert not watcher.aim(other, (), elsewhere=False)
        assert other.sight is WakeupOrigin.JOURNAL
        journal.wait(1)
    watcher.close()


async def test_one_that_has_left_is_aimed_at_nothing_more(watcher: StreamWatcher) -> None:
    bell = Wakeup("0")
    watcher.enter(bell)
    assert watcher.aim(bell, (__file__,), elsewhere=False)
    assert not watcher.aim(bell, (__file__,), elsewhere=False)  # that is done already
    watcher.leave(bell)

    assert bell.numbers == ()
    assert not watcher.aim(bell, (__file__,), elsewhere=False)
    assert bell.numbers == ()


async def test_a_closed_watcher_rings_all_and_takes_nobody(journal: Journal) -> None:
    watcher = watcher_over(journal)
    bell = Wakeup("0")
    watcher.enter(bell)
    watcher.close()
    watcher.close()

    assert not await rung(bell)
    with pytest.raises(UsageError, match="closed"):
        watcher.enter(Wakeup("1"))
    assert not watcher.aim(bell, (__file__,), elsewhere=False)
    with watcher.asleep(bell):
        assert not [each for each in threading.enumerate() if each.name == "leasehold-watch-test"]
    watcher.leave(bell)


def letter(**changed: object) -> DeadLetter:
    event = Event(key="ann", body=b"hello", properties={"a": "b"}, sequence_number=41)
    fields: dict[str, object] = {
        "event": event,
        "stream": "orders",
        "group": "billing",
        "partition": "3",
        "epoch": 7,
        "attempts": 5,
        "reason": "ValueError: no price",
        "traceback": "Traceback\n  line\nValueError: no price\n",
        "failed_at": AT,
    }
    return DeadLetter(**{**fields, **changed})  # type: ignore[arg-type]


def test_a_dead_letter_says_where_it_came_from_and_why() -> None:
    assert letter().properties() == {
        "a": "b",
        "leasehold-reason": "ValueError: no price",
        "leasehold-traceback": "Traceback\n  line\nValueError: no price\n",
        "leasehold-stream": "orders",
        "leasehold-group": "billing",
        "leasehold-partition": "3",
        "leasehold-sequence-number": "41",
        "leasehold-epoch": "7",
        "leasehold-attempts": "5",
        "leasehold-failed-at": "2026-01-31T12:00:00+00:00",
    }


@pytest.mark.parametrize("sign", ["x", "ä", "…", "🙂"])
def test_of_a_long_traceback_the_end_is_kept(sign: str) -> None:
    text = sign * MAX_TRACEBACK_BYTES + "\nValueError: no price\n"

    kept = letter(traceback=text).properties()["leasehold-traceback"]

    assert len(kept.encode()) <= MAX_TRACEBACK_BYTES
    assert len(kept.encode()) > MAX_TRACEBACK_BYTES - 8
    assert kept.startswith("… (cut)\n")
    assert kept.endswith("\nValueError: no price\n")


@pytest.mark.parametrize("sign", ["x", "ä", "…", "🙂"])
def test_of_a_long_reason_the_beginning_is_kept(sign: str) -> None:
    found = letter(reason="ValueError: " + sign * (1 << 20))

    kept = found.properties()["leasehold-reason"]
    short = found.short_properties()["leasehold-reason"]

    assert MAX_REASON_BYTES - 4 < len(kept.encode()) <= MAX_REASON_BYTES
    assert len(short.encode()) < len(kept.encode())
    for each in (kept, short):
        assert each.startswith(f"ValueError: {sign}")
        assert each.endswith(f"{sign}… (cut)")


def test_of_a_short_letter_the_event_is_whole() -> None:
    assert letter().short_properties() == {
        "a": "b",
        "leasehold-reason": "ValueError: no price",
        "leasehold-partition": "3",
        "leasehold-sequence-number": "41",
    }


def test_an_error_that_fails_when_it_is_asked_for_its_message_still_has_a_reason() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise KeyError("no such field")

    assert reason_of(ValueError("no price")) == "ValueError: no price"
    assert reason_of(Unspeakable()).startswith("Unspeakable: (no message")
    assert "Unspeakable" in traceback_of(Unspeakable())


def test_a_traceback_begins_with_the_first_line_that_is_not_ours() -> None:
    def handle(context: object, event: object) -> None:
        raise ValueError("no price")

    with pytest.raises(ValueError, match="no price") as raised:
        anyio.run(anyio.to_thread.run_sync, handle, None, None)
    raised.value.__traceback__ = raised.value.__traceback__.tb_next  # type: ignore[union-attr]
    text = traceback_of(raised.value)
    lines = text.splitlines()
    assert "in handle" in lines[1]
    assert "anyio" not in text
    assert lines[-1] == "ValueError: no price"


def test_an_error_whose_traceback_can_not_be_made_still_has_a_reason() -> None:
    class Odd(Exception):
        @property
        def __cause__(self) -> BaseException | None:  # type: ignore[override]
            raise RuntimeError("no cause")

    assert traceback_of(Odd("why")) == "Odd: why"


def test_text_that_utf_8_can_not_hold_is_no_hindrance() -> None:
    found = letter(traceback="\udcff", reason="ValueError: \udcff").properties()

    assert found["leasehold-traceback"] == "?"
    assert found["leasehold-reason"] == "ValueError: ?"
