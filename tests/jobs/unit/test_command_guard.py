"""Which processes belong to a command, and what its guard is told of its deadline."""

from __future__ import annotations

import math
import os

import pytest

from leasehold.jobs.command.child import Deadline
from leasehold.jobs.command.guard import Process, Timer, command_processes, processes


def process(parent: int, session: int, *, is_dead: bool = False) -> Process:
    return Process(parent=parent, session=session, is_dead=is_dead)


def test_all_of_the_session_and_all_descendants_belong_to_it() -> None:
    known = {
        1: process(0, 1),
        10: process(1, 10),  # the guard
        20: process(10, 20),  # the command
        21: process(20, 20),
        22: process(1, 20),  # of the session, though its parent is gone
        30: process(10, 30),  # a daemon that came to the guard
        31: process(30, 31),
        40: process(1, 40),  # somebody else's
        41: process(40, 40),
    }
    assert command_processes(known, ancestor=10, session=20) == [20, 21, 22, 30, 31]
    assert command_processes(known, ancestor=10, session=0) == [20, 21, 30, 31]
    assert command_processes(known, ancestor=-1, session=20) == [20, 21, 22]


def test_what_is_dead_is_passed_over_and_its_children_are_not() -> None:
    known = {10: process(1, 10), 20: process(10, 20, is_dead=True), 21: process(20, 20)}
    assert command_processes(known, ancestor=10, session=20) == [21]


def test_the_processes_of_the_machine_are_found_with_their_parents() -> None:
    found = processes()
    assert found[os.getpid()].parent == os.getppid()
    assert found[os.getpid()].session == os.getsid(0)


@pytest.mark.parametrize(("at_s", "rings"), [(0.0, True), (1.5, True), (math.inf, False)])
def test_a_moment_that_has_passed_rings_at_once_and_infinity_never(
    at_s: float, rings: bool
) -> None:
    timer = Timer()
    try:
        timer.set(at_s)
        assert timer.expired() is rings
        assert timer.expired() is False
    finally:
        os.close(timer.descriptor)


def test_the_deadline_is_an_order() -> None:
    assert Deadline(term_at_s=1.5, kill_at_s=2.0).message() == "D 1.500000 2.000000"
    assert Deadline(term_at_s=math.inf, kill_at_s=math.inf).message() == "D inf inf"
