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

_LONGEST_S = 24 * 3600.0
_LARGEST = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How a pipeline behaves; checked when it is made. All of it has a default.

    Attributes:
        batch_events: the most events of one batch, over all partitions that are held.
        local_events: a batch of at most so many events is read by the driver itself, which is
            cheaper than a task for it; 0: never.
        interval: the least time from the beginning of a batch to that of the next one.
        start: where a partition begins of which neither sink nor store knows anything.
        on_trimmed: where to go on when retention has removed the next event.
        columns: the columns of the events that the transformation needs; all by default.
        tasks: into how many tasks a batch is cut; by default one for each core of Spark.
        poison: what becomes of a batch that can not be transformed or staged.
        dead_letters: where its events go if ``poison`` says so.
        strategy, timing, weight, max_partitions: as of any member of a group.
        drain_timeout: how long the batch under way may take when a partition is to be handed over.
        discovery_interval: how often to look for new partitions.

    Raises:
        InvalidOptions, InvalidDuration: with what is wrong and what to write.
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
        """Refuse what can not work."""
        for name, value, least in (
            ("batch_events", self.batch_events, 1),
            ("local_events", self.local_events, 0),
            ("tasks", self.tasks, 1),
        ):
            if value is None and name == "tasks":
                continue
            if not is_integer(value) or not least <= value <= _LARGEST:
                raise InvalidOptions(f"{least} <= {name} <= {_LARGEST:,} does not hold ({value!r})")
        if isinstance(self.columns, str):
            raise InvalidOptions(f"columns is a tuple of names: write columns=({self.columns!r},)")
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.poison.then is PoisonAction.DEAD_LETTER and self.dead_letters is None:
            raise InvalidOptions(
                "poison=PoisonPolicy.dead_letter() needs a place for the letters: write "
                'dead_letters=LogDeadLetters(log, "dead")'
            )
        seconds_of(self.interval, what="interval", min_s=0.0, max_s=_LONGEST_S)
        seconds_of(self.discovery_interval, what="discovery_interval", min_s=0.1, max_s=_LONGEST_S)
        self.member(group="partition/check/check", name="check")

    def member(self, *, group: str, name: str) -> MemberOptions:
        """The same, as the member of the group needs it."""
        return MemberOptions(
            group=group,
            name=name,
            strategy=self.strategy,
            timing=self.timing,
            weight=self.weight,
            most=self.max_partitions,
            drain_timeout=self.drain_timeout,
        )
