"""What is sent again under its producer's id: a receipt means stored, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.clock import SystemClock
from leasehold.errors import ResendUncertain, StoreUnavailable
from leasehold.events import Event
from leasehold.events.event import sent_batch
from leasehold.log import Log, ProducerOptions, producer_states
from leasehold.log.owner_link import OwnerClient
from leasehold.log.partition_router import PartitionRouter
from leasehold.log.producer_batch import ProducerBatch, StreamPartition, receipts_of
from leasehold.log.segment_format import ProducerStamp

SOON_S = 120
MINE = ProducerOptions(producer_id=b"0123456789abcdef")
STREAMS = count()


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/log.db"
    with Log.open(url, volumes=[tmp_path / "a"]) as log:
        log.create("one", partitions=1)
    return url


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    with Log.open(url) as opened:
        yield opened


def bodies(log: Log, stream: str = "one") -> list[str]:
    with log.reader(stream, 0) as reader:
        return [event.body.decode() for batch in reader.batches() for event in batch]


def failing(*numbers: int) -> Any:
    """Deliveries as they are, but the ones with these numbers do not reach the owner."""
    deliver, calls = PartitionRouter.deliver, count()

    def delivered(router: PartitionRouter, batches: Sequence[ProducerBatch], **more: Any) -> Any:
        if next(calls) in numbers:
            raise StoreUnavailable("nothing answered")
        return deliver(router, batches, **more)

    return delivered


def send_each(log: Log, names: str) -> list[str]:
    """Send single events; return what became of each, as one word."""
    said = []
    with log.producer("one", MINE) as producer:
        for name in names:
            try:
                (receipt,) = producer.send(Event(body=name.encode())).result(SOON_S)
            except (StoreUnavailable, ResendUncertain) as error:
                said.append(type(error).__name__)
            else:
                said.append("duplicate" if receipt.duplicate else "stored")
    return said


def test_a_batch_that_failed_before_a_later_one_is_stored_when_it_is_sent_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log.open(url) as log, monkeypatch.context() as patch:
        patch.setattr(PartitionRouter, "deliver", failing(0, 2))
        outcome = send_each(log, "abcd")
        assert outcome == ["StoreUnavailable", "stored", "StoreUnavailable", "stored"]
    for expected in (["stored", "duplicate", "stored", "duplicate"], ["duplicate"] * 4):
        with Log.open(url) as log:  # each reads the state from the segment of the one before
            assert send_each(log, "abcd") == expected
            assert sorted(bodies(log)) == list("abcd")
            assert not log.verify("one")


def test_one_send_that_spans_what_failed_and_what_was_stored_says_where_each_part_is(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PartitionRouter, "deliver", failing(1))
        send_each(log, "abc")
    with log.producer("one", MINE) as producer:
        found = producer.send([Event(body=each.encode()) for each in "abcd"]).result(SOON_S)
    assert bodies(log) == list("acbd")
    assert [(each.first_sequence, each.count, each.duplicate) for each in found] == [
        (0, 1, True),
        (2, 1, False),
        (1, 1, True),
        (3, 1, False),
    ]


def test_what_the_log_no_longer_remembers_is_refused_and_named(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_states, "MAX_GAPS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionRouter, "deliver", failing(1, 3))
        send_each(log, "abcde")
    assert send_each(log, "abcde") == [
        "ResendUncertain",
        "ResendUncertain",
        "duplicate",
        "stored",
        "duplicate",
    ]
    with log.producer("one", MINE) as producer:
        future = producer.send([Event(body=b"a"), Event(body=b"b"), Event(body=b"c")])
        with pytest.raises(ResendUncertain, match="without producer_id") as refused:
            future.result(SOON_S)
    assert (refused.value.partition, refused.value.count) == (0, 2)
    assert sorted(bodies(log)) == ["a", "c", "d", "e"]


RANGES = st.tuples(st.integers(0, 40), st.integers(1, 9))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.lists(RANGES, min_size=1, max_size=3)),
        st.tuples(st.just("in order"), st.lists(RANGES, min_size=1, max_size=3)),
        st.tuples(st.just("next owner"), st.just([])),
        st.tuples(st.just("recovered"), st.just([])),
    ),
    min_size=1,
    max_size=14,
)


class Deliveries:
    """One partition, to which any numbers of two producers are delivered in any order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.stream = log.create(
            f"model-{next(STREAMS)}", partitions=1, segment_bytes=4096, replication=1
        )
        self.client = OwnerClient(clock=SystemClock(), owner_timeout_s=SOON_S)
        self.receipted: dict[str, int] = {}

    def deliver(self, ranges: Sequence[tuple[int, int]], *, producer: str, in_order: bool) -> None:
        if in_order:  # the promise of such a sender: nothing new below what it has sent
            sent = [int(each[1:]) for each in self.receipted if each[0] == producer]
            ranges = [(first, n) for first, n in sorted(ranges) if first > max(sent, default=-1)]
        batches = [self.batch(producer, *each, in_order=in_order) for each in ranges]
        if not batches:
            return
        stored = self.log._router(self.stream, 0).deliver(
            batches,
            durable=False,
            owner_client=self.client,
            deadline_s=SystemClock().boottime_s() + SOON_S,
        )
        for (first, many), answer in zip(ranges, stored, strict=True):
            assert sum(part.count for part in answer.parts) == many
            for number in range(first, first + many):
                try:
                    (receipt,) = receipts_of(answer, partition=0, start=number - first, count=1)
                except ResendUncertain:
                    continue
                name = f"{producer}{number}"
                assert receipt.duplicate or name not in self.receipted
                if receipt.first_sequence >= 0 or name not in self.receipted:
                    self.receipted[name] = receipt.first_sequence

    def batch(self, producer: str, first: int, many: int, *, in_order: bool) -> ProducerBatch:
        events = [Event(body=f"{producer}{n}".encode()) for n in range(first, first + many)]
        stamp = ProducerStamp(producer=producer.encode() * 16, sequence=first)
        return ProducerBatch(stamp=stamp, batch=sent_batch(events), in_order=in_order)

    def change_owner(self, *, recovered: bool) -> None:
        """Let the owner end, or another process take its segment; the next one re-reads it."""
        partition = StreamPartition(stream=self.stream.name, number=0)
        router = self.log._routers.pop(partition, None)
        if router is None:
            return
        if recovered and router.owner is not None:
            self.log.files.recover(router.owner.path, timeout=timedelta(seconds=SOON_S))
        router.close()

    def check(self) -> None:
        found = bodies(self.log, self.stream.name)
        assert not [each for each, times in Counter(found).items() if times > 1]
        for each, sequence in self.receipted.items():
            assert each in found, f"{each} was receipted and is not stored"
            assert sequence < 0 or found[sequence] == each


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, max_gaps=st.integers(1, 4))
def test_whatever_is_delivered_again_in_any_order_a_receipt_means_stored_once(
    log: Log, monkeypatch: pytest.MonkeyPatch, steps: list[Any], max_gaps: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(producer_states, "MAX_GAPS", max_gaps)
        model = Deliveries(log)
        for number, (step, ranges) in enumerate(steps):
            if step in {"deliver", "in order"}:
                in_order = step == "in order"
                producer = "i" if in_order else "ab"[number % 2]
                model.deliver(ranges, producer=producer, in_order=in_order)
            else:
                model.change_owner(recovered=step == "recovered")
        model.check()
        model.change_owner(recovered=False)
        log.delete(model.stream.name)
