"""What a member believes: it begins once, ends once, and never goes back."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leasehold.lease.cycle import Holdings
from leasehold.model import Ownership

KEY = "job/a"


def owned(epoch: int, key: str = KEY) -> Ownership:
    return Ownership(key=key, epoch=epoch, holder="me", token="secret")


class Recorder:
    """A keeper that writes down what it is told; ``stopped`` is its answer to a drain."""

    def __init__(self, *, stopped: bool = False) -> None:
        self.stopped = stopped
        self.told: list[str] = []

    def opened(self, ownership: Ownership) -> None:
        self.told.append(f"opened {ownership.key}@{ownership.epoch}")

    def drain(self, ownership: Ownership) -> bool:
        self.told.append(f"drain {ownership.key}@{ownership.epoch}")
        return self.stopped

    def closed(self, ownership: Ownership, reason: str) -> None:
        self.told.append(f"closed {ownership.key}@{ownership.epoch}: {reason}")


@pytest.fixture
def keeper() -> Recorder:
    return Recorder()


@pytest.fixture
def holdings(keeper: Recorder) -> Holdings:
    return Holdings(keeper)


# ------------------------------------------------------------------------ beginning, ending


def test_nothing_is_held_at_first(holdings: Holdings) -> None:
    assert holdings.empty
    assert holdings.believed(KEY, 0.0) is None
    assert holdings.next_deadline_s() == math.inf


def test_a_key_is_opened_once_however_often_it_is_told(
    holdings: Holdings, keeper: Recorder
) -> None:
    for _ in range(3):
        holdings.open(owned(1))
    assert keeper.told == ["opened job/a@1"]
    assert holdings.believed(KEY, 1e9) == owned(1)
    assert not holdings.empty


def test_a_key_is_closed_once_however_often_it_is_told(
    holdings: Holdings, keeper: Recorder
) -> None:
    holdings.open(owned(1))
    for _ in range(3):
        holdings.close(KEY, reason="stolen")
    assert keeper.told == ["opened job/a@1", "closed job/a@1: stolen"]
    assert holdings.empty


def test_what_was_never_held_is_not_closed(holdings: Holdings, keeper: Recorder) -> None:
    holdings.close(KEY, reason="lost")
    holdings.drain(KEY, to=None, until_s=1.0)
    holdings.drained(owned(1), reason="released")
    assert keeper.told == []
    assert holdings.empty


def test_a_newer_epoch_ends_the_older_before_it_begins(
    holdings: Holdings, keeper: Recorder
) -> None:
    holdings.open(owned(1))
    holdings.open(owned(3))
    assert keeper.told == ["opened job/a@1", "closed job/a@1: lost", "opened job/a@3"]
    assert holdings.held[KEY].epoch == 3


def test_an_older_epoch_never_replaces_a_newer(holdings: Holdings, keeper: Recorder) -> None:
    holdings.open(owned(3))
    holdings.open(owned(2))
    assert keeper.told == ["opened job/a@3"]
    assert holdings.held[KEY].epoch == 3


def test_a_newer_epoch_is_not_drained_because_the_older_was(holdings: Holdings) -> None:
    holdings.open(owned(1))
    holdings.drain(KEY, to="b", until_s=5.0)
    holdings.open(owned(2))
    assert holdings.believed(KEY, 99.0) == owned(2)
    assert holdings.overdue(99.0) == []


# --------------------------------------------------------------------- draining and leaving


def test_work_that_has_stopped_at_once_is_closed_and_given_up() -> None:
    keeper = Recorder(stopped=True)
    holdings = Holdings(keeper)
    holdings.open(owned(1))
    holdings.open(owned(1, "job/b"))
    holdings.drain(KEY, to="b", until_s=9.0)
    holdings.drain("job/b", to=None, until_s=9.0)
    assert keeper.told[2:] == [
        "drain job/a@1",
        "closed job/a@1: handed_over",
        "drain job/b@1",
        "closed job/b@1: released",
    ]
    assert {key: each.to for key, each in holdings.leaving.items()} == {KEY: "b", "job/b": None}
    assert not holdings.held


def test_a_key_is_believed_while_its_work_is_stopping(holdings: Holdings, keeper: Recorder) -> None:
    holdings.open(owned(1))
    holdings.drain(KEY, to="b", until_s=9.0)
    assert holdings.believed(KEY, 8.999) == owned(1)
    assert not holdings.leaving
    holdings.drained(owned(1), reason="handed_over")
    assert holdings.believed(KEY, 8.999) is None
    assert holdings.leaving[KEY].ownership == owned(1)
    assert keeper.told == ["opened job/a@1", "drain job/a@1", "closed job/a@1: handed_over"]


def test_the_keeper_is_asked_to_drain_once(holdings: Holdings, keeper: Recorder) -> None:
    holdings.open(owned(1))
    for to in ("b", "c", None):
        holdings.drain(KEY, to=to, until_s=9.0)
    holdings.drained(owned(1), reason="handed_over")
    holdings.drained(owned(1), reason="handed_over")
    assert keeper.told.count("drain job/a@1") == 1
    assert keeper.told.count("closed job/a@1: handed_over") == 1
    assert holdings.leaving[KEY].to == "b", "the first receiver was promised it"


@pytest.mark.parametrize(("second", "ends"), [(3.0, 3.0), (12.0, 9.0)])
def test_a_break_during_a_drain_only_shortens(
    holdings: Holdings, second: float, ends: float
) -> None:
    holdings.open(owned(1))
    holdings.drain(KEY, to="b", until_s=9.0)
    holdings.drain(KEY, to=None, until_s=second)
    assert holdings.next_deadline_s() == ends
    assert holdings.believed(KEY, ends - 0.001) == owned(1)
    assert holdings.believed(KEY, ends) is None


def test_work_that_does_not_stop_is_overdue_and_no_more_believed(holdings: Holdings) -> None:
    holdings.open(owned(1))
    holdings.open(owned(1, "job/b"))
    holdings.drain(KEY, to=None, until_s=5.0)
    assert holdings.overdue(4.999) == []
    assert len(holdings.all_believed(4.999)) == 2
    assert holdings.overdue(5.0) == [KEY]
    assert holdings.all_believed(5.0) == [owned(1, "job/b")]


def test_the_next_deadline_is_the_first_of_all_and_ends_with_its_key(holdings: Holdings) -> None:
    for key, until_s in ((KEY, 7.0), ("job/b", 5.0)):
        holdings.open(owned(1, key))
        holdings.drain(key, to=None, until_s=until_s)
    assert holdings.next_deadline_s() == 5.0
    holdings.drained(owned(1, "job/b"), reason="released")
    assert holdings.next_deadline_s() == 7.0
    holdings.close(KEY, reason="stolen")
    assert holdings.next_deadline_s() == math.inf


def test_a_late_word_from_older_work_does_not_end_the_newer(holdings: Holdings) -> None:
    holdings.open(owned(2))
    holdings.drain(KEY, to="b", until_s=9.0)
    holdings.drained(owned(1))
    assert holdings.believed(KEY, 0.0) == owned(2)


def test_an_error_of_the_keeper_does_not_keep_the_rest_open() -> None:
    class Broken(Recorder):
        def closed(self, ownership: Ownership, reason: str) -> None:
            super().closed(ownership, reason)
            raise RuntimeError(ownership.key)

    keeper = Broken()
    holdings = Holdings(keeper)
    for key in (KEY, "job/b"):
        holdings.open(owned(1, key))
    with pytest.raises(RuntimeError, match="job/a"):
        holdings.close_all(reason="shutdown")
    assert holdings.empty
    assert len([word for word in keeper.told if word.startswith("closed")]) == 2


def test_a_key_that_is_lost_while_draining_is_not_given_up(holdings: Holdings) -> None:
    holdings.open(owned(1))
    holdings.drain(KEY, to="b", until_s=9.0)
    holdings.close(KEY, reason="stolen")
    holdings.drained(owned(1), reason="handed_over")
    assert holdings.empty


@pytest.mark.parametrize("epoch", [1, 2])
def test_nothing_comes_back_from_leaving_at_the_same_epoch_or_an_older(
    holdings: Holdings, keeper: Recorder, epoch: int
) -> None:
    holdings.give_up(owned(2), to="b")
    holdings.open(owned(epoch))
    assert keeper.told == []
    assert holdings.leaving[KEY].ownership.epoch == 2


def test_a_newer_epoch_begins_and_the_older_needs_no_giving_up(
    holdings: Holdings, keeper: Recorder
) -> None:
    holdings.give_up(owned(2), to="b")
    holdings.open(owned(4))
    assert keeper.told == ["opened job/a@4"]
    assert not holdings.leaving


def test_leaving_ends_with_the_word_of_the_store_on_that_epoch(holdings: Holdings) -> None:
    holdings.give_up(owned(2), to=None)
    holdings.settled(KEY, epoch=1)
    assert KEY in holdings.leaving
    holdings.settled(KEY, epoch=2)
    assert holdings.empty
    holdings.settled(KEY, epoch=2)


def test_the_end_of_a_newer_epoch_is_the_end_of_the_older(holdings: Holdings) -> None:
    holdings.give_up(owned(2), to=None)
    holdings.settled(KEY, epoch=5)
    assert holdings.empty


def test_close_all_ends_everything_once_and_has_nothing_left_to_send(
    holdings: Holdings, keeper: Recorder
) -> None:
    for key in (KEY, "job/b"):
        holdings.open(owned(1, key))
    holdings.drain(KEY, to="b", until_s=9.0)
    holdings.give_up(owned(1, "job/c"), to=None)
    for _ in range(2):
        holdings.close_all(reason="shutdown")
    assert keeper.told[-2:] == ["closed job/a@1: shutdown", "closed job/b@1: shutdown"]
    assert len(keeper.told) == 5
    assert holdings.empty
    assert holdings.next_deadline_s() == math.inf


# --------------------------------------------------------------------- in whatever order


KEYS = st.sampled_from(["job/a", "job/b"])
EPOCHS = st.integers(1, 4)
TIMES = st.floats(0, 10)
RECEIVERS = st.sampled_from([None, "b"])


class AnyOrder(RuleBasedStateMachine):
    """Everything a member is told, in any order, with a keeper that stops now or later."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper = Recorder()
        self.holdings = Holdings(self.keeper)

    @rule(key=KEYS, epoch=EPOCHS)
    def open(self, key: str, epoch: int) -> None:
        left = self.holdings.leaving.get(key)
        before = len(self.keeper.told)
        self.holdings.open(owned(epoch, key))
        if left is not None and left.ownership.epoch >= epoch:
            assert f"opened {key}@{epoch}" not in self.keeper.told[before:]

    @rule(key=KEYS)
    def close(self, key: str) -> None:
        self.holdings.close(key, reason="lost")

    @rule(key=KEYS, to=RECEIVERS, until_s=TIMES, stopped=st.booleans())
    def drain(self, key: str, to: str | None, until_s: float, stopped: bool) -> None:
        before = self.holdings.next_deadline_s()
        self.keeper.stopped = stopped
        self.holdings.drain(key, to=to, until_s=until_s)
        if key in self.holdings.held:
            assert self.holdings.next_deadline_s() <= min(before, until_s)

    @rule(key=KEYS)
    def drained(self, key: str) -> None:
        if key in self.holdings.held:
            self.holdings.drained(self.holdings.held[key], reason="handed_over")

    @precondition(lambda self: self.holdings.leaving)
    @rule(key=KEYS, epoch=EPOCHS)
    def settled(self, key: str, epoch: int) -> None:
        self.holdings.settled(key, epoch=epoch)

    @rule()
    def close_all(self) -> None:
        self.holdings.close_all(reason="shutdown")
        assert self.holdings.empty

    @invariant()
    def a_key_is_in_one_place(self) -> None:
        assert not set(self.holdings.held) & set(self.holdings.leaving)

    @invariant()
    def only_what_is_held_can_be_overdue(self) -> None:
        assert set(self.holdings.overdue(math.inf)) <= set(self.holdings.held)

    @invariant()
    def each_opening_has_one_end_at_most_and_it_comes_after(self) -> None:
        running: Counter[str] = Counter()
        for line in self.keeper.told:
            word, _, ownership = line.partition(":")[0].partition(" ")
            running[ownership] += {"opened": 1, "drain": 0, "closed": -1}[word]
            assert running[ownership] in (0, 1)
            keys = [name.partition("@")[0] for name, count in running.items() if count]
            assert len(keys) == len(set(keys)), "one epoch of a key at a time"
        held = {f"{key}@{each.epoch}" for key, each in self.holdings.held.items()}
        assert {name for name, count in running.items() if count} == held


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30)
