"""Events that a client numbers are stored once, and none is taken for stored that is not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from leasehold.hub.retries import Retries

WHO = ("hub", "now", 0, 7)


def _sent(retries: Retries, first: int, last: int) -> Future[Any]:
    stored: Future[Any] = Future()
    retries.sent(WHO, first, last, stored)
    return stored


def test_what_is_on_its_way_is_waited_for_by_its_own_answer() -> None:
    retries = Retries()
    one, two = _sent(retries, 0, 9), _sent(retries, 10, 19)
    assert retries.repeated(WHO, 0, 10) == (10, one)
    assert retries.repeated(WHO, 10, 10) == (10, two)
    assert retries.repeated(WHO, 20, 5) == (0, None)
    assert retries.repeated(WHO, 15, 10) == (5, None)


def test_what_is_stored_is_answered_at_once() -> None:
    retries = Retries()
    _sent(retries, 0, 9).set_result(None)
    skip, answer = retries.repeated(WHO, 0, 10)
    assert skip == 10
    assert answer is not None
    assert answer.done()
    assert retries.last(WHO) == 9


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
    assert retries.last(WHO) == -1
    assert retries.repeated(WHO, 10, 10)[0] == 10  # it is there
    assert retries.repeated(WHO, 0, 10) == (0, None)
    _sent(retries, 0, 9).set_result(None)
    assert retries.repeated(WHO, 0, 10)[0] == 10
    assert retries.last(WHO) == 19


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_that_were_refused_are_both_stored_when_they_come_again(order: tuple[int, int]) -> None:
    retries = Retries()
    both = _sent(retries, 0, 9), _sent(retries, 10, 19)
    for number in order:
        both[number].set_exception(OSError("full"))
    assert retries.repeated(WHO, 0, 10) == (0, None)
    assert retries.repeated(WHO, 10, 10) == (0, None)
