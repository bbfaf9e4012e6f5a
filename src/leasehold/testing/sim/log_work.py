"""A partition of the log in the fault runs of files: owners that follow each other, and resends.

Producers are outside of the machine. They number their events, and send a batch again under the
same numbers when they got no answer: at once, or after later ones were stored. Some send what was
answered once more. Whatever owner stores it, what was receipted is in the log exactly once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.errors import DataDamaged, LeaseholdError
from leasehold.events.event import Event, sent_batch
from leasehold.files.model import FileState
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.partition_owner import PartitionOwner, newest_segment, open_next_segment
from leasehold.log.producer_batch import (
    OwnerMoved,
    ProducerBatch,
    StoredBatch,
    StoreOutcome,
    StreamPartition,
)
from leasehold.log.segment_format import FrameHeader, FrameKind, ProducerStamp
from leasehold.log.segment_list import ListedSegment
from leasehold.log.streams import LogCounters, StreamSettings, base_of, segments

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.files.namespace import Namespace
    from leasehold.testing.sim.file_checks import FileChecks

PARTITION = StreamPartition(stream="s", number=0)
SETTINGS = StreamSettings(partitions=1, segment_bytes=8192)
_PRODUCERS = (b"0123456789abcdef", b"fedcba9876543210")
_MAX_EVENTS = 4


@dataclass(slots=True, eq=False)
class SentBatch:
    """Events of one producer, sent once or more."""

    producer: bytes
    first: int
    count: int
    attempts: int = 0
    is_answered: bool = False


class Producers:
    """All producers of the partition, and what they were told."""

    def __init__(self, checks: FileChecks) -> None:
        self.resent = 0
        self._checks = checks
        self._sent: list[SentBatch] = []
        self._next = dict.fromkeys(_PRODUCERS, 0)
        # By producer and number: whether it was said to be durable.
        self._receipted: dict[tuple[bytes, int], bool] = {}

    def next_batch(self, rng: random.Random) -> SentBatch:
        """Return what is sent now: something new, or something again."""
        unanswered = [each for each in self._sent if not each.is_answered]
        answered = [each for each in self._sent if each.is_answered]
        chance = rng.random()
        if unanswered and chance < 0.4:
            return rng.choice(unanswered)
        if answered and chance < 0.5:
            return rng.choice(answered)
        producer = rng.choice(_PRODUCERS)
        made = SentBatch(producer, self._next[producer], rng.randint(1, _MAX_EVENTS))
        self._next[producer] += made.count
        self._sent.append(made)
        return made

    def restarted(self) -> None:
        """Forget what was receipted and is not durable: the power was cut."""
        self._receipted = {key: durable for key, durable in self._receipted.items() if durable}

    def answered(self, sent: SentBatch, stored: StoredBatch, *, durable: bool) -> None:
        """Check the answer of an owner."""
        sent.is_answered = True
        at = sent.first
        for part in stored.parts:
            for number in range(at, at + part.count):
                key = (sent.producer, number)
                if part.outcome is StoreOutcome.DUPLICATE and sent.attempts == 1:
                    self._checks.found(
                        f"event {number} of a producer was sent once, and is called a duplicate"
                    )
                if part.outcome is not StoreOutcome.UNKNOWN:
                    self._receipted[key] = durable or self._receipted.get(key, False)
            at += part.count

    def check(self, found: Counter[tuple[bytes, int]], *, may_lack: bool) -> None:
        """Compare the receipts with the whole log."""
        for (_, number), times in found.items():
            if times > 1:
                self._checks.found(f"event {number} of a producer is in the log {times} times")
        missing = [key for key in self._receipted if key not in found]
        if missing and not may_lack:
            self._checks.found(
                f"event {missing[0][1]} of a producer was receipted, and is not in the log"
            )


class OwnerWork:
    """What a process does as an owner of the partition."""

    def __init__(
        self, files: Namespace, producers: Producers, rng: random.Random, *, clock: Clock
    ) -> None:
        self._files = files
        self._producers = producers
        self._rng = rng
        self._clock = clock
        self._owner: PartitionOwner | None = None

    def send(self, *, soft_s: float, recovers: Callable[[str], None]) -> str:
        """Let producers send something to this process."""
        owner = self._current(soft_s, recovers)
        if owner is None:
            return "another process owns the partition"
        sent = [self._producers.next_batch(self._rng) for _ in range(self._rng.randint(1, 3))]
        sent = list(dict.fromkeys(sent))
        lost = sent.pop() if self._rng.random() < 0.15 else None  # on its way, and sent later
        durable = self._rng.random() < 0.5
        if not sent:
            return f"{lost} is lost"
        recovers(owner.path)
        answer = owner.submit([_batch(each) for each in sent], durable=durable)
        for each in sent:
            self._producers.resent += each.attempts > 0
            each.attempts += 1
        owner.store_submitted()
        try:
            stored = answer.result(0)
        except OwnerMoved:
            self._owner = None
            raise
        for each, answered in zip(sent, stored, strict=True):
            self._producers.answered(each, answered, durable=durable)
        numbers = [(each.producer[:1], each.first, each.count) for each in sent]
        return f"stores {numbers} in {owner.path}"

    def _current(self, soft_s: float, recovers: Callable[[str], None]) -> PartitionOwner | None:
        if self._owner is not None:
            return self._owner
        last = newest_segment(self._files, PARTITION)
        if last is not None and last.state is not FileState.CLOSED:
            if last.idle_s <= soft_s and self._rng.random() < 0.8:
                return None
            recovers(last.path)
            self._files.recover(last.path, timeout=timedelta(0))
        opened = open_next_segment(self._files, PARTITION, SETTINGS, from_base=0)
        self._owner = PartitionOwner(
            PARTITION,
            opened,
            SETTINGS,
            files=self._files,
            clock=self._clock,
            counts=LogCounters(),
            has_thread=False,
        )
        return self._owner


def check_log(files: Namespace, producers: Producers, checks: FileChecks) -> int:
    """Read the whole partition, and compare it with what the producers were told."""
    found: Counter[tuple[bytes, int]] = Counter()
    may_lack = any(file.lost for file in checks.files.values())
    sequence = 0
    try:
        for status in segments(files, PARTITION.stream, PARTITION.number):
            for header in _events(files, status.path) if status.length else ():
                if header.base_sequence != sequence:
                    checks.found(f"{status.path}: event {header.base_sequence} after {sequence}")
                sequence = header.next_sequence
                first = header.producer_sequence
                for number in range(first, first + header.count):
                    found[header.producer, number] += 1
    except LeaseholdError as error:
        if not any(checks.damage.values()):
            checks.found(f"the log can not be read: {error}")
        may_lack = True
    producers.check(found, may_lack=may_lack)
    return sum(found.values())


def _events(files: Namespace, path: str) -> list[FrameHeader]:
    mapped = MappedSegment(ListedSegment(base=base_of(path) or 0, path=path), files)
    while True:
        try:
            return [each for each in mapped.whole.frames() if each.kind is FrameKind.EVENTS]
        except DataDamaged as damage:
            mapped.repair(damage)


def _batch(sent: SentBatch) -> ProducerBatch:
    events = [
        Event(body=b"%s:%d" % (sent.producer, number))
        for number in range(sent.first, sent.first + sent.count)
    ]
    return ProducerBatch(
        stamp=ProducerStamp(producer=sent.producer, sequence=sent.first), batch=sent_batch(events)
    )
