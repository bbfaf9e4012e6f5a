"""Which faults are injected, how often and for how long; all drawn from one generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

MAX_EVENTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How likely each fault is, per call or per step. All zero: no faults."""

    request_lost: float = 0.0
    answer_lost: float = 0.0
    refused: float = 0.0
    late_request: float = 0.0
    late_answer: float = 0.0
    duplicated: float = 0.0
    pause: float = 0.0
    latency_s: float = 0.02
    max_delay_s: float = 25.0
    max_pause_s: float = 30.0
    clock_rate_error: float = 0.0
    drain_s: float = 0.0


NO_FAULTS = FaultRates()


def draw_fault_rates(rng: random.Random) -> FaultRates:
    """Draw a rate for each kind of fault; some kinds are left out."""

    def rate(max_rate: float) -> float:
        return rng.uniform(0.0, max_rate) if rng.random() < 0.7 else 0.0

    return FaultRates(
        request_lost=rate(0.1),
        answer_lost=rate(0.15),
        refused=rate(0.1),
        late_request=rate(0.05),
        late_answer=rate(0.1),
        duplicated=rate(0.05),
        pause=rate(0.02),
        latency_s=rng.choice((0.005, 0.05, 0.5)),
        clock_rate_error=0.05,
        drain_s=rng.choice((0.0, 0.5, 5.0, 60.0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRates:
    """The faults in the work on a partition: at the source, in handlers, at the sink.

    ``slow_s``: maximum time of a slow handler. ``late_s``: maximum delay of a message to the source
    or the sink. ``poison``: share of events that always fail. ``letters_fail``: how likely the
    dead letters do not answer. ``thread_late``: how likely a thread begins, or is heard of, up to
    ``thread_late_s`` late.
    """

    source_fails: float = 0.0
    source_hangs: float = 0.0
    late: float = 0.0
    late_s: float = 10.0
    handler_fails: float = 0.0
    handler_slow: float = 0.0
    slow_s: float = 0.0
    own_checkpoints: float = 0.0
    usual_s: float = 0.02
    poison: float = 0.0
    letters_fail: float = 0.0
    thread_late: float = 0.0
    thread_late_s: float = 0.0


NO_WORK_FAULTS = WorkRates(own_checkpoints=0.1)


def draw_work_rates(rng: random.Random, lease_s: float) -> WorkRates:
    """Draw the faults of handlers: some take longer than their host's lease lasts."""

    def rate(max_rate: float) -> float:
        return rng.uniform(0.0, max_rate) if rng.random() < 0.7 else 0.0

    return WorkRates(
        source_fails=rate(0.15),
        # Half of all calls: one that is repeated hangs again.
        source_hangs=rate(rng.choice((0.05, 0.5))),
        late=rate(0.1),
        handler_fails=rate(0.3),
        handler_slow=rate(0.15),
        slow_s=lease_s * rng.choice((0.2, 1.0, 2.0)),
        own_checkpoints=rate(0.3),
        usual_s=rng.choice((0.01, 0.3)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFaults:
    """The faults of one call. None: that message never arrives."""

    request_s: float | None
    answer_s: float | None
    again_s: float | None = None
    refused: bool = False


def draw_call_faults(rates: FaultRates, rng: random.Random) -> CallFaults:
    """Draw the faults of one call."""

    def transit(late: float) -> float:
        usual = rng.uniform(0.0, rates.latency_s)
        if late and rng.random() < late:
            return usual + rng.uniform(0.0, rates.max_delay_s)
        return usual

    if rates.refused and rng.random() < rates.refused:
        return CallFaults(request_s=None, answer_s=transit(0.0), refused=True)
    request_lost = rates.request_lost and rng.random() < rates.request_lost
    answer_lost = rates.answer_lost and rng.random() < rates.answer_lost
    duplicated = rates.duplicated and rng.random() < rates.duplicated
    return CallFaults(
        request_s=None if request_lost else transit(rates.late_request),
        answer_s=None if answer_lost else transit(rates.late_answer),
        again_s=rng.uniform(0.0, rates.max_delay_s) if duplicated else None,
    )
