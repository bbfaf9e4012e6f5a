"""The settings of a namespace, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from leasehold.errors import InvalidOptions
from leasehold.files.model import Limits
from leasehold.names import seconds_of

_LEAST_S = 0.01
_MOST_S = 30 * 24 * 3600.0
_LEAST_BLOCK_BYTES = 4096
_MOST_BLOCK_BYTES = 1 << 40
_MOST_REPLICATION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files are written, and when those of a silent holder are taken over.

    Attributes:
        soft_limit: after this time without renewal another client may take a file over.
        hard_limit: after this time the monitor recovers it unasked.
        look_every: how often the renewer looks; it renews at half the soft limit.
        monitor_every: how often the monitor looks.
        monitor_budget: after this time a pass of the monitor begins no further recovery.
        attempt_limit: how long one recovery may take before another may begin.
        replication: on how many volumes a block lies; by default 3, or all if there are fewer.
        least_replicas: a writer whose block is on fewer volumes than this stops.
        block_size: how many bytes until the next block begins.

    Raises:
        InvalidDuration: a duration lies outside its range.
        InvalidOptions: two settings contradict each other, or a number is out of its range.
    """

    soft_limit: timedelta = timedelta(seconds=60)
    hard_limit: timedelta = timedelta(minutes=20)
    look_every: timedelta = timedelta(seconds=1)
    monitor_every: timedelta = timedelta(seconds=2)
    monitor_budget: timedelta = timedelta(seconds=1)
    attempt_limit: timedelta = timedelta(seconds=90)
    replication: int | None = None
    least_replicas: int = 1
    block_size: int = 128 << 20

    def __post_init__(self) -> None:
        """Refuse what could not work, naming the relation that is broken."""
        for what in (
            "soft_limit",
            "hard_limit",
            "look_every",
            "monitor_every",
            "monitor_budget",
            "attempt_limit",
        ):
            seconds_of(getattr(self, what), what=what, least_s=_LEAST_S, most_s=_MOST_S)
        if self.hard_limit < self.soft_limit:
            raise InvalidOptions(
                f"soft_limit <= hard_limit does not hold ({self.soft_limit} > {self.hard_limit}): "
                "the monitor would take files from holders that nobody else may rob"
            )
        if self.look_every > self.soft_limit / 2:
            raise InvalidOptions(
                f"look_every <= soft_limit / 2 does not hold ({self.look_every} > "
                f"{self.soft_limit / 2}): a renewal would come too late; look more often"
            )
        check_replication(self.replication)
        check_block_size(self.block_size)
        most = self.replication or _MOST_REPLICATION
        if not 1 <= self.least_replicas <= most:
            raise InvalidOptions(
                f"1 <= least_replicas <= replication does not hold ({self.least_replicas} and "
                f"{self.replication or 'default'}): no block could ever be written"
            )

    @property
    def limits(self) -> Limits:
        """The times the journal judges by."""
        return Limits(
            soft_s=self.soft_limit.total_seconds(),
            hard_s=self.hard_limit.total_seconds(),
            attempt_s=self.attempt_limit.total_seconds(),
        )


def check_replication(replication: object) -> None:
    """Refuse a replication that no block could have; None is the default.

    Raises:
        InvalidOptions: it is no whole number in its range.
    """
    _check_whole(replication if replication is not None else 1, "replication", 1, _MOST_REPLICATION)


def check_block_size(block_size: object) -> None:
    """Refuse a size that no block could have.

    Raises:
        InvalidOptions: it is no whole number in its range.
    """
    _check_whole(block_size, "block_size", _LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES)


def _check_whole(value: object, what: str, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidOptions(f"{what} is {value!r} and must lie between {least} and {most}")
