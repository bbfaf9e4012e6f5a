"""Readers with an epoch: the highest one of a group reads alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.log_segments import StreamEnv, open_stream_env

from leasehold.errors import ReaderDisplaced, UsageError
from leasehold.events import Start

SOON = timedelta(seconds=120)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[StreamEnv]:
    made = open_stream_env(tmp_path)
    owner = made.owner()
    owner.many(2)
    owner.many(2)
    yield made
    made.close()


@pytest.mark.spec("E2")
def test_a_lower_epoch_ends_with_the_next_batch_and_is_told_who_reads_now(env: StreamEnv) -> None:
    old = env.reader(group="billing", epoch=1, name="anna")
    assert old.read() is not None

    new = env.reader(group="billing", epoch=2, name="bert")

    with pytest.raises(ReaderDisplaced, match=r"'bert' with epoch 2") as stolen:
        old.read()
    assert stolen.value.now_held_by == "bert"
    assert stolen.value.epoch == 1
    assert old.position == 2  # what was not handed out was not passed
    assert len(list(new.batches())) == 2


@pytest.mark.spec("E2")
def test_a_lower_epoch_is_refused_when_it_opens(env: StreamEnv) -> None:
    env.reader(group="billing", epoch=5, name="bert")

    with pytest.raises(ReaderDisplaced, match=r"'bert' with epoch 5; this reader has epoch 4"):
        env.reader(group="billing", epoch=4, name="anna")


@pytest.mark.spec("E2")
def test_of_two_readers_with_the_same_epoch_the_newer_one_wins(env: StreamEnv) -> None:
    first = env.reader(group="billing", epoch=3)
    second = env.reader(group="billing", epoch=3)

    with pytest.raises(ReaderDisplaced):
        first.read()
    assert second.read() is not None


@pytest.mark.spec("E2")
def test_of_two_readers_with_one_name_and_one_epoch_only_the_newer_one_reads(
    env: StreamEnv,
) -> None:
    first = env.reader(group="billing", epoch=5, name="host1")
    second = env.reader(group="billing", epoch=5, name="host1")

    with pytest.raises(ReaderDisplaced, match="by 'host1' with epoch 5") as stolen:
        first.read()
    assert stolen.value.now_held_by == "host1"
    assert second.read() is not None


def test_the_same_reader_may_open_again(env: StreamEnv) -> None:
    env.reader(group="billing", epoch=3, name="anna").close()

    assert env.reader(group="billing", epoch=3, name="anna").read() is not None


@pytest.mark.spec("E2")
def test_a_reader_without_an_epoch_is_ended_and_refused_while_its_group_has_one(
    env: StreamEnv,
) -> None:
    plain = env.reader(group="billing")
    assert plain.read() is not None

    env.reader(group="billing", epoch=0, name="bert")

    with pytest.raises(ReaderDisplaced, match="this reader has no epoch"):
        plain.read()
    with pytest.raises(ReaderDisplaced, match="this reader has no epoch"):
        env.reader(group="billing")


@pytest.mark.spec("E2")
def test_groups_do_not_disturb_each_other_nor_those_who_read_freely(env: StreamEnv) -> None:
    billing = env.reader(group="billing", epoch=1)
    free = env.reader()
    env.reader(group="audit", epoch=9)
    env.reader(group="billing", epoch=9)

    assert len(list(free.batches())) == 2
    with pytest.raises(ReaderDisplaced):
        billing.read()
    assert len(list(env.reader(group="plain").batches())) == 2


@pytest.mark.spec("E2")
def test_a_reader_that_waits_is_ended_too(env: StreamEnv) -> None:
    old = env.reader(Start.latest(), group="billing", epoch=1)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            old.wait(SOON)
        except ReaderDisplaced as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    env.reader(group="billing", epoch=2)
    waiting.join(timeout=120)

    assert len(ends) == 1


@pytest.mark.spec("E2")
def test_search_by_key_asks_too(env: StreamEnv) -> None:
    owner = env.owner()
    owner.take_over()
    owner.many(1, key="k")
    old = env.reader(group="billing", epoch=1)
    env.reader(group="billing", epoch=2)

    with pytest.raises(ReaderDisplaced):
        list(old.find("k"))


def test_an_epoch_below_zero_is_refused(env: StreamEnv) -> None:
    with pytest.raises(UsageError, match="0 or more"):
        env.reader(group="billing", epoch=-1)
