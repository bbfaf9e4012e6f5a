"""The settings of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.core.balance import Strategy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.core.poison_policy import PoisonAction, PoisonPolicy
from leasehold.errors import InvalidOptions
from leasehold.events.start import Start
from leasehold.lease.group_state import is_integer
from leasehold.lease.options import MemberOptions
from leasehold.names import seconds_of
from leasehold.processor.options import OnTrimmed

if TYPE_CHECKING:
    from leasehold.events.dead_letters import DeadLetters

_MAX_INTERVAL_S = 24 * 3600.0
_MAX_COUNT = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The options of a pipeline, checked on construction. All have a default.

    Attributes:
        batch_events: maximum number of events in one batch, over all owned partitions.
        local_events: a batch of at most this many events is read by the driver itself, which is
            cheaper than a task; 0: never.
        interval: minimum time from the beginning of a batch to that of the next one.
        start: where a partition begins that neither sink nor store knows.
        on_trimmed: where to resume when retention has removed the next event.
        columns: the columns of the events that the transformation needs; all by default.
        tasks: number of tasks of a batch; by default one for each core of Spark.
        poison: what to do with a batch that cannot be transformed or staged.
        dead_letters: where its events go if ``poison`` is ``dead_letter``.
        strategy, timing, weight, max_partitions: as of any member of a group.
        drain_timeout: maximum duration of the batch in progress when a partition is handed over.
        discovery_interval: how often to check for new partitions.

    Raises:
        InvalidOptions, InvalidDuration: an option is invalid; the message gives a valid one.
    """

    batch_events: int = 500_000
    local_events: int = 10_000
    interval: timedelta = timedelta(0)
    start: Start = field(default_factory=Start.earliest)
    on_trimmed: OnTrimmed = OnTrimmed.FAIL
    columns: tuple[str, ...] = ()
    tasks: int | None = None
    poison: PoisonPolicy = field(default_factory=PoisonPolicy.stop)
    dead_letters: DeadLetters | None = None
    strategy: Strategy = Strategy.EVEN
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    weight: float = 1.0
    max_partitions: int | None = None
    drain_timeout: timedelta = timedelta(minutes=5)
    discovery_interval: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        for name, value, least in (
            ("batch_events", self.batch_events, 1),
            ("local_events", self.local_events, 0),
            ("tasks", self.tasks, 1),
        ):
            if value is None and name == "tasks":
                continue
            if not is_integer(value) or not least <= value <= _MAX_COUNT:
                raise InvalidOptions(
                    f"{least} <= {name} <= {_MAX_COUNT:,} does not hold ({value!r})"
                )
        if isinstance(self.columns, str):
            raise InvalidOptions(f"columns is a tuple of names: write columns=({self.columns!r},)")
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.poison.then is PoisonAction.DEAD_LETTER and self.dead_letters is None:
            raise InvalidOptions(
                "poison=PoisonPolicy.dead_letter() needs a place for the letters: write "
                'dead_letters=LogDeadLetters(log, "dead")'
            )
        seconds_of(self.interval, what="interval", min_s=0.0, max_s=_MAX_INTERVAL_S)
        seconds_of(
            self.discovery_interval, what="discovery_interval", min_s=0.1, max_s=_MAX_INTERVAL_S
        )
        self.member(group="partition/check/check", name="check")

    def member(self, *, group: str, name: str) -> MemberOptions:
        """Return the options of the group member."""
        return MemberOptions(
            group=group,
            name=name,
            strategy=self.strategy,
            timing=self.timing,
            weight=self.weight,
            most=self.max_partitions,
            drain_timeout=self.drain_timeout,
        )
