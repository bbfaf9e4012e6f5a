"""Events that a client numbers are stored once, and none is taken for stored that is not."""

from __future__ import annotations

from array import array
from concurrent.futures import Future
from typing import Any

import pytest

from leasehold.azure.endpoint import retries as module
from leasehold.azure.endpoint.retries import NumberedEvents, Retries, checksums_of
from leasehold.events import Event
from leasehold.events.event import sent_batch

PRODUCER = ("hub", "now", 0, 7)


def _events(first: int, last: int, version: int = 0) -> NumberedEvents:
    """Events that differ by their number, and from those of another version."""
    checksums = array("I", (number + 1000 * version for number in range(first, last + 1)))
    return NumberedEvents(first=first, checksums=checksums)


def _sent(retries: Retries, first: int, last: int, version: int = 0) -> Future[Any]:
    stored: Future[Any] = Future()
    retries.record_sent(PRODUCER, _events(first, last, version), stored)
    return stored


def _repeated(
    retries: Retries, first: int, count: int, version: int = 0
) -> tuple[int, Future[Any] | None]:
    return retries.find_repeated(PRODUCER, _events(first, first + count - 1, version))


def test_what_is_on_its_way_is_waited_for_by_its_own_answer() -> None:
    retries = Retries()
    one, two = _sent(retries, 0, 9), _sent(retries, 10, 19)
    assert _repeated(retries, 0, 10) == (10, one)
    assert _repeated(retries, 10, 10) == (10, two)
    assert _repeated(retries, 20, 5) == (0, None)
    assert _repeated(retries, 15, 10) == (5, None)


def test_what_is_stored_is_answered_at_once() -> None:
    retries = Retries()
    _sent(retries, 0, 9).set_result(None)
    skip, answer = _repeated(retries, 0, 10)
    assert skip == 10
    assert answer is not None
    assert answer.done()
    assert retries.last(PRODUCER) == 9


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_was_refused_is_stored_when_it_comes_again_whatever_came_after_it(
    order: tuple[int, int],
) -> None:
    retries = Retries()
    both = _sent(retries, 0, 9), _sent(retries, 10, 19)
    for number in order:
        if number:
            both[1].set_result(None)
        else:
            both[0].set_exception(OSError("full"))
    assert retries.last(PRODUCER) == -1
    assert _repeated(retries, 10, 10)[0] == 10  # it is there
    assert _repeated(retries, 0, 10) == (0, None)
    _sent(retries, 0, 9).set_result(None)
    assert _repeated(retries, 0, 10)[0] == 10
    assert retries.last(PRODUCER) == 19


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_that_were_refused_are_both_stored_when_they_come_again(order: tuple[int, int]) -> None:
    retries = Retries()
    both = _sent(retries, 0, 9), _sent(retries, 10, 19)
    for number in order:
        both[number].set_exception(OSError("full"))
    assert _repeated(retries, 0, 10) == (0, None)
    assert _repeated(retries, 10, 10) == (0, None)


def test_numbers_that_are_used_again_for_other_events_hide_nothing() -> None:
    retries = Retries()
    _sent(retries, 0, 9).set_result(None)
    assert _repeated(retries, 0, 10, version=1) == (0, None)
    assert _repeated(retries, 0, 3, version=1) == (0, None)
    _sent(retries, 0, 2, version=1).set_result(None)
    assert retries.last(PRODUCER) == 2
    assert _repeated(retries, 0, 3, version=1)[0] == 3
    assert _repeated(retries, 3, 4) == (0, None)


def test_a_batch_whose_first_events_alone_are_known_is_another_one() -> None:
    retries = Retries()
    _sent(retries, 0, 9)
    mixed = _events(0, 4).checksums + _events(5, 9, version=1).checksums
    assert retries.find_repeated(PRODUCER, NumberedEvents(first=0, checksums=mixed)) == (0, None)
    assert _repeated(retries, 0, 15) == (10, None)


def test_the_end_of_what_was_replaced_says_nothing_of_what_came_instead() -> None:
    retries = Retries()
    old, new = _sent(retries, 0, 9), _sent(retries, 0, 2, version=1)
    old.set_exception(OSError("full"))
    assert _repeated(retries, 0, 3, version=1) == (3, new)


def test_a_batch_over_several_that_are_known_is_known() -> None:
    retries = Retries()
    _sent(retries, 0, 4).set_result(None)
    last = _sent(retries, 5, 9)
    assert _repeated(retries, 2, 8) == (8, last)


def test_only_the_last_are_known_and_all_producers_have_one_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_CHECKSUMS", 20)
    monkeypatch.setattr(module, "_MAX_TOTAL_CHECKSUMS", 100)
    retries = Retries()
    for first in range(0, 100, 10):
        _sent(retries, first, first + 9).set_result(None)
    assert _repeated(retries, 0, 10) == (0, None)
    assert _repeated(retries, 70, 30)[0] == 30
    others = [("hub", "now", 0, number) for number in range(100, 120)]
    for producer in others:
        retries.record_sent(producer, _events(0, 9), Future())
    assert retries.last(PRODUCER) is None
    assert [producer for producer in others if retries.last(producer) is not None] == others[-10:]


def test_events_differ_by_body_key_and_properties() -> None:
    events = [
        Event(body=b"a"),
        Event(body=b"b"),
        Event(body=b"a", key="k"),
        Event(body=b"a", properties={"p": "1"}),
        Event(body=b"a"),
    ]
    found = checksums_of(sent_batch(events))
    assert found[0] == found[4]
    assert len(set(found)) == 4
