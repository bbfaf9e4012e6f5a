"""The settings of a log and of a producer, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from leasehold.errors import InvalidOptions
from leasehold.files.model import FileOptions
from leasehold.names import seconds_of

_LONGEST_S = 24 * 3600.0
_PRODUCER_ID_BYTES = 16
_ATTEMPT_LIMIT = timedelta(seconds=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is opened.

    Attributes:
        files: the settings of the files below it. Their ``recovery_timeout`` is shorter than
            usual: a segment is recovered quickly, and a crash during it must not delay producers.
        run_monitor: whether this process also recovers files that others left behind.
        socket_directory: where the socket is on which other producers of this machine connect;
            by default the user's runtime directory, or else the one for temporary files.
    """

    files: FileOptions = field(default_factory=lambda: FileOptions(recovery_timeout=_ATTEMPT_LIMIT))
    run_monitor: bool = True
    socket_directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How events are gathered into batches, and how long anything may take.

    Attributes:
        linger: how long a small batch waits for more events.
        batch_events: a batch of this many events does not wait.
        batch_bytes: a batch of this many bytes does not wait; a bigger one is split.
        max_pending_bytes: when what waits to be stored takes this much memory, ``send`` blocks.
        send_timeout: how long it blocks at most; then ``BufferFull``.
        deliver_timeout: how long a batch is tried; then its future fails. Longer than the files'
            ``recovery_timeout``, or a crash during a take-over makes batches fail.
        owner_timeout: after this time without an answer the owner of a partition counts as crashed.
        durable: acknowledge what survives a power cut (sync), not only a kill (flush).
        producer_id: 16 bytes, to send everything again that a former producer sent, from its first
            event on, by the same calls; other events would be taken for the old ones and left out.
            By default a new one.

    Raises:
        InvalidDuration: a duration is outside its range.
        InvalidOptions: two settings contradict each other, or a number is out of its range.
    """

    linger: timedelta = timedelta(milliseconds=5)
    batch_events: int = 1000
    batch_bytes: int = 1 << 20
    max_pending_bytes: int = 64 << 20
    send_timeout: timedelta = timedelta(seconds=30)
    deliver_timeout: timedelta = timedelta(seconds=60)
    owner_timeout: timedelta = timedelta(seconds=5)
    durable: bool = True
    producer_id: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what could not work, naming the relation that is broken."""
        seconds_of(self.linger, what="linger", min_s=0.0, max_s=60.0)
        for what in ("send_timeout", "deliver_timeout", "owner_timeout"):
            seconds_of(getattr(self, what), what=what, min_s=0.01, max_s=_LONGEST_S)
        if self.batch_events < 1 or self.batch_bytes < 1:
            raise InvalidOptions(
                f"batch_events and batch_bytes are {self.batch_events} and {self.batch_bytes} and "
                "must be 1 or more: no batch could ever be sent"
            )
        if self.max_pending_bytes < self.batch_bytes:
            raise InvalidOptions(
                "batch_bytes <= max_pending_bytes does not hold "
                f"({self.batch_bytes} > {self.max_pending_bytes}): no batch would ever be full"
            )
        if self.deliver_timeout < self.owner_timeout:
            raise InvalidOptions(
                "owner_timeout <= deliver_timeout does not hold "
                f"({self.owner_timeout} > {self.deliver_timeout}): a dead owner would stay for ever"
            )
        if self.linger > self.deliver_timeout:
            raise InvalidOptions(
                "linger <= deliver_timeout does not hold "
                f"({self.linger} > {self.deliver_timeout}): "
                "batches would fail while they wait for more events"
            )
        if self.producer_id and len(self.producer_id) != _PRODUCER_ID_BYTES:
            raise InvalidOptions(
                f"producer_id has {len(self.producer_id)} bytes and must have "
                f"{_PRODUCER_ID_BYTES}, or none for a new one"
            )
        if self.producer_id and not any(self.producer_id):
            raise InvalidOptions(
                "producer_id is all zero, which stands for no producer: choose another, or none "
                "for a new one"
            )
