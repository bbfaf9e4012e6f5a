"""The settings of a processor, and the defaults of the described systems as presets (P12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Self, TypeVar

from leasehold.core.balance import Strategy
from leasehold.core.checkpoint_policy import CheckpointPolicy
from leasehold.core.lease_timing import MAX_LEASE_S, LeaseTiming
from leasehold.core.poison_policy import PoisonAction, PoisonPolicy
from leasehold.core.stall_rule import StallRule
from leasehold.errors import InvalidOptions
from leasehold.events.start import Start
from leasehold.lease.group_state import is_integer
from leasehold.lease.options import MemberOptions, check_share, check_timing
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from leasehold.events.dead_letters import DeadLetters

E = TypeVar("E", bound=Enum)

_MAX_DURATION_S = 7 * 24 * 3600.0
_MIN_GOODBYE_S = 1.0
_MAY_BE_NONE = frozenset(("handler_timeout", "give_up_after"))
_SECOND = timedelta(seconds=1)
_LARGEST = 100_000_000 << 10
_EXAMPLES = {
    "checkpoint": "checkpoint=CheckpointPolicy.every(events=1000)",
    "poison": "poison=PoisonPolicy.retry()",
}


class OnTrimmed(StrEnum):
    """Where to resume when retention has removed the next event."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


class LoadMeasure(StrEnum):
    """The load of a partition, for the strategy ``by_load``."""

    EVENTS = "events"
    BYTES = "bytes"
    LAG = "lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """The settings of a processor, checked when they are created. All of them have a default.

    ``start``: where a partition without a checkpoint begins; ``starts``: the same for single
    partitions. ``batch_events`` and ``batch_bytes``: maximum size of one ``on_batch`` call.
    ``prefetch_events`` and ``prefetch_bytes``: maximum size of what waits for it, per partition.
    ``handler_timeout``: maximum time of one handler call. ``stall_after``: how long a partition
    with work may make no progress before that is reported; ``give_up_after``: before it is given to
    another host. ``drain_timeout``: how long a graceful stop may take. ``max_partitions``: maximum
    number of partitions on this host; ``weight`` scales its share. ``discovery_interval``: how
    often new partitions are looked up.

    Raises:
        InvalidOptions, InvalidDuration: with what is wrong and what to write.
    """

    strategy: Strategy = Strategy.EVEN
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    start: Start = field(default_factory=Start.earliest)
    starts: Mapping[str, Start] = field(default_factory=dict)
    batch_events: int = 10_000
    batch_bytes: int = 4 << 20
    prefetch_events: int = 20_000
    prefetch_bytes: int = 8 << 20
    checkpoint: CheckpointPolicy = field(
        default_factory=lambda: CheckpointPolicy.every(interval=_SECOND)
    )
    poison: PoisonPolicy = field(default_factory=PoisonPolicy.retry)
    dead_letters: DeadLetters | None = None
    handler_timeout: timedelta | None = None
    stall_after: timedelta = timedelta(minutes=1)
    give_up_after: timedelta | None = timedelta(minutes=10)
    drain_timeout: timedelta = timedelta(seconds=30)
    hand_over_timeout: timedelta | None = None
    max_partitions: int | None = None
    weight: float = 1.0
    on_trimmed: OnTrimmed = OnTrimmed.EARLIEST
    load: LoadMeasure = LoadMeasure.EVENTS
    discovery_interval: timedelta = timedelta(seconds=30)

    @classmethod
    def event_hubs(cls) -> Self:
        """Return the defaults of the Event Hubs processors: 30 s cycles, 2 min expiry, greedy.

        They begin at the end of a partition, with 300 events ahead.
        """
        return cls(
            strategy=Strategy.GREEDY,
            timing=LeaseTiming(lease_s=120.0, renew_s=30.0, margin_s=12.0, call_s=30.0),
            start=Start.latest(),
            batch_events=300,
            prefetch_events=300,
        )

    @classmethod
    def event_processor_host(cls) -> Self:
        """Return the defaults of the older Event Processor Host: lease 30 s, renewed every 10 s.

        One partition is stolen at a time; batches have 10 events, and 300 wait.
        """
        return cls(
            strategy=Strategy.ONE_STEAL,
            timing=LeaseTiming(lease_s=30.0, renew_s=10.0, margin_s=3.0, call_s=8.0),
            batch_events=10,
            prefetch_events=300,
        )

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("batch_events", "batch_bytes", "prefetch_events", "prefetch_bytes"):
            _check_count(name, getattr(self, name))
        for name, kind in (
            ("strategy", Strategy),
            ("on_trimmed", OnTrimmed),
            ("load", LoadMeasure),
        ):
            object.__setattr__(self, name, _one_of(kind, getattr(self, name), name))
        self._check_starts()
        check_timing(self.timing)
        check_share(weight=self.weight, most=self.max_partitions, max_name="max_partitions")
        for name, policy in (("checkpoint", CheckpointPolicy), ("poison", PoisonPolicy)):
            if not isinstance(getattr(self, name), policy):
                raise InvalidOptions(
                    f"{name} must be a {policy.__name__}, not {getattr(self, name)!r}: write "
                    f"{_EXAMPLES[name]}, or leave it out"
                )
        self._check_dead_letters()
        self._check_times()

    def _check_starts(self) -> None:
        _check_start("start", self.start)
        starts: object = self.starts
        if not isinstance(starts, Mapping):
            raise InvalidOptions(
                f'starts must be a mapping, not {starts!r}: write starts={{"0": Start.latest()}}'
            )
        for partition, start in starts.items():
            if not isinstance(partition, str):
                raise InvalidOptions(
                    f"the partition {partition!r} in starts is not text: write "
                    f'starts={{"{partition}": …}}'
                )
            _check_start(f"starts[{partition!r}]", start)

    def _check_dead_letters(self) -> None:
        letters = self.dead_letters
        if letters is not None and not callable(getattr(letters, "send", None)):
            raise InvalidOptions(
                f"dead_letters must be able to send(letters), and {letters!r} is not: write "
                'dead_letters=LogDeadLetters(log, "orders-dead")'
            )
        if self.poison.then is PoisonAction.DEAD_LETTER and self.dead_letters is None:
            raise InvalidOptions(
                "poison=PoisonPolicy.dead_letter() needs dead_letters, the stream to put them in: "
                'dead_letters=LogDeadLetters(log, "orders-dead")'
            )

    def member(self, *, group: str, name: str) -> MemberOptions:
        """Return the settings of a member of ``group``."""
        return MemberOptions(
            group=group,
            name=name,
            strategy=self.strategy,
            timing=self.timing,
            weight=self.weight,
            most=self.max_partitions,
            hand_over_timeout=self.hand_over_timeout,
            drain_timeout=self.drain_timeout,
        )

    @property
    def handler_timeout_s(self) -> float | None:
        """The maximum time of one handler call, in seconds."""
        return None if self.handler_timeout is None else self.handler_timeout.total_seconds()

    @property
    def stall(self) -> StallRule:
        """When a partition counts as stuck."""
        give_up = self.give_up_after
        return StallRule(
            stall_after_s=self.stall_after.total_seconds(),
            give_up_after_s=None if give_up is None else give_up.total_seconds(),
        )

    @property
    def goodbye_s(self) -> float:
        """The maximum time of a forced end for what cannot be cancelled, in seconds."""
        return max(self.drain_timeout.total_seconds(), _MIN_GOODBYE_S)

    def start_of(self, partition: str) -> Start:
        """Return where a partition without a checkpoint begins."""
        return self.starts.get(partition, self.start)

    def _check_times(self) -> None:
        for name in ("handler_timeout", "stall_after", "give_up_after", "discovery_interval"):
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                seconds_of(value, what=name, min_s=0.01, max_s=_MAX_DURATION_S)
        if self.give_up_after is not None and self.give_up_after < self.stall_after:
            raise InvalidOptions(
                f"give_up_after >= stall_after does not hold ({self.give_up_after} is less than "
                f"{self.stall_after}): a stall is reported first; use None to only report it"
            )
        seconds_of(self.drain_timeout, what="drain_timeout", min_s=0.0, max_s=MAX_LEASE_S)
        self.member(group="partition/check/check", name="check")


def _one_of(kind: type[E], value: object, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(each.value) for each in kind)
        raise InvalidOptions(f"{what} can not be {value!r}: choose one of {names}") from None


def _check_count(name: str, value: object) -> None:
    if not is_integer(value):
        raise InvalidOptions(f"{name} must be a whole number, not {value!r}: write {name}=1000")
    if not 1 <= value <= _LARGEST:
        raise InvalidOptions(f"1 <= {name} <= {_LARGEST:,} does not hold ({value})")


def _check_start(name: str, value: object) -> None:
    if not isinstance(value, Start):
        how = f'Start.parse("{value}")' if isinstance(value, str) else "Start.latest()"
        raise InvalidOptions(f"{name} must be a Start, not {value!r}: write {how}")
