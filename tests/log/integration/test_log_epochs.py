"""Readers with an epoch: the highest one of a group reads alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.log_segments import Place, opened_place

from leasehold.errors import ReaderDisplaced, UsageError
from leasehold.events import Start

SOON = timedelta(seconds=120)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = opened_place(tmp_path)
    owner = made.owner()
    owner.many(2)
    owner.many(2)
    yield made
    made.close()


@pytest.mark.spec("E2")
def test_a_lower_epoch_ends_with_the_next_batch_and_is_told_who_reads_now(place: Place) -> None:
    old = place.reader(group="billing", epoch=1, name="anna")
    assert old.read() is not None

    new = place.reader(group="billing", epoch=2, name="bert")

    with pytest.raises(ReaderDisplaced, match=r"'bert' with epoch 2") as stolen:
        old.read()
    assert stolen.value.now_held_by == "bert"
    assert stolen.value.epoch == 1
    assert old.position == 2  # what was not handed out was not passed
    assert len(list(new.batches())) == 2


@pytest.mark.spec("E2")
def test_a_lower_epoch_is_refused_at_the_door(place: Place) -> None:
    place.reader(group="billing", epoch=5, name="bert")

    with pytest.raises(ReaderDisplaced, match=r"'bert' with epoch 5; this reader has epoch 4"):
        place.reader(group="billing", epoch=4, name="anna")


@pytest.mark.spec("E2")
def test_of_two_readers_with_the_same_epoch_the_newer_one_wins(place: Place) -> None:
    first = place.reader(group="billing", epoch=3)
    second = place.reader(group="billing", epoch=3)

    with pytest.raises(ReaderDisplaced):
        first.read()
    assert second.read() is not None


@pytest.mark.spec("E2")
def test_of_two_readers_with_one_name_and_one_epoch_only_the_newer_one_reads(place: Place) -> None:
    first = place.reader(group="billing", epoch=5, name="host1")
    second = place.reader(group="billing", epoch=5, name="host1")

    with pytest.raises(ReaderDisplaced, match="by 'host1' with epoch 5") as stolen:
        first.read()
    assert stolen.value.now_held_by == "host1"
    assert second.read() is not None


def test_the_same_reader_may_open_again(place: Place) -> None:
    place.reader(group="billing", epoch=3, name="anna").close()

    assert place.reader(group="billing", epoch=3, name="anna").read() is not None


@pytest.mark.spec("E2")
def test_a_reader_without_an_epoch_is_ended_and_refused_while_its_group_has_one(
    place: Place,
) -> None:
    plain = place.reader(group="billing")
    assert plain.read() is not None

    place.reader(group="billing", epoch=0, name="bert")

    with pytest.raises(ReaderDisplaced, match="this reader has no epoch"):
        plain.read()
    with pytest.raises(ReaderDisplaced, match="this reader has no epoch"):
        place.reader(group="billing")


@pytest.mark.spec("E2")
def test_groups_do_not_disturb_each_other_nor_those_who_read_freely(place: Place) -> None:
    billing = place.reader(group="billing", epoch=1)
    free = place.reader()
    place.reader(group="audit", epoch=9)
    place.reader(group="billing", epoch=9)

    assert len(list(free.batches())) == 2
    with pytest.raises(ReaderDisplaced):
        billing.read()
    assert len(list(place.reader(group="plain").batches())) == 2


@pytest.mark.spec("E2")
def test_a_reader_that_waits_is_ended_too(place: Place) -> None:
    old = place.reader(Start.latest(), group="billing", epoch=1)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            old.wait(SOON)
        except ReaderDisplaced as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    place.reader(group="billing", epoch=2)
    waiting.join(timeout=120)

    assert len(ends) == 1


@pytest.mark.spec("E2")
def test_search_by_key_asks_too(place: Place) -> None:
    owner = place.owner()
    owner.take_over()
    owner.many(1, key="k")
    old = place.reader(group="billing", epoch=1)
    place.reader(group="billing", epoch=2)

    with pytest.raises(ReaderDisplaced):
        list(old.find("k"))


def test_an_epoch_below_zero_is_refused(place: Place) -> None:
    with pytest.raises(UsageError, match="0 or more"):
        place.reader(group="billing", epoch=-1)
