"""The time to the next occurrence of a schedule, beside cronsim and croniter."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from bench.report import Bar, Row, cost
from croniter import croniter  # type: ignore[import-untyped]
from cronsim import CronSim

from leasehold.core.cron import parse_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

# Makes ready what is not measured; what it returns is measured.
Prepared = Callable[[], Callable[[], object]]

START = datetime(2026, 1, 1, 3, 7, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin")
_BEST_OF = 5
_APART = timedelta(hours=5, minutes=18)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many occurrences are asked for in one block."""

    first: int
    chain: int


FULL = Sizes(first=200, chain=200)
SMALL = Sizes(first=3, chain=3)
LINES = ("*/5 * * * *", "30 2 * * *", "0 9-17 * * 1-5", "0 0 1 * *")
SECONDS_FIRST = "*/15 * * * * *"


def rows(sizes: Sizes = FULL) -> list[Row]:
    """µs of one occurrence: the first of a schedule that was read, and one after the other."""
    found = []
    for zone in ZONES:
        for text in (*LINES, SECONDS_FIRST):
            found += [_first(text, zone, sizes.first), _chain(text, zone, sizes.chain)]
    return found


def _first(text: str, zone: str, count: int) -> Row:
    """For each moment a schedule that has not been asked yet; reading it does not count."""
    moments = [(START + each * _APART).astimezone(_tz(zone)) for each in range(count)]

    def ours() -> Callable[[], object]:
        asked = [(parse_schedule(text, tz=zone), moment) for moment in moments]
        return lambda: [schedule.next(moment) for schedule, moment in asked]

    def by_cronsim() -> Callable[[], object]:
        peers = [CronSim(text, moment) for moment in moments]
        return lambda: [next(peer) for peer in peers]

    def by_croniter() -> Callable[[], object]:
        peers = [_croniter(text, moment) for moment in moments]
        return lambda: [peer.get_next() for peer in peers]

    return _row(f"first of {text}, {zone}", [ours, by_cronsim, by_croniter], count)


def _chain(text: str, zone: str, count: int) -> Row:
    """The occurrences of one schedule, each asked for with the one before it."""
    start = START.astimezone(_tz(zone))
    schedule = parse_schedule(text, tz=zone)

    def ours() -> Callable[[], object]:
        def run() -> None:
            moment: datetime | None = start
            for _ in range(count):
                assert moment is not None
                moment = schedule.next(moment)

        return run

    def by_cronsim() -> Callable[[], object]:
        peer = CronSim(text, start)
        return lambda: [next(peer) for _ in range(count)]

    def by_croniter() -> Callable[[], object]:
        peer = _croniter(text, start)
        return lambda: [peer.get_next() for _ in range(count)]

    return _row(f"one after the other of {text}, {zone}", [ours, by_cronsim, by_croniter], count)


def _row(what: str, tries: Sequence[Prepared], count: int) -> Row:
    """The peer is the faster of the two; the names say which it was, and what the other took."""
    ours, sim, iterated = (1e6 * each / count for each in _best_s(tries))
    peer = min(sim, iterated)
    words = f"{what}: µs (cronsim {sim:.3g}, croniter {iterated:.3g})"
    return cost(words, ours, peer, Bar(words="<= peer", most=peer))


def _best_s(tries: Sequence[Prepared]) -> list[float]:
    """For each the best of five blocks; they take turns, and nothing is collected meanwhile."""
    best = [math.inf] * len(tries)
    gc.collect()
    gc.disable()
    try:
        for _ in range(_BEST_OF):
            best = [min(before, _once_s(each)) for before, each in zip(best, tries, strict=True)]
    finally:
        gc.enable()
    return best


def _once_s(prepare: Prepared) -> float:
    run = prepare()
    begun_s = time.process_time()
    run()
    return time.process_time() - begun_s


def _croniter(text: str, start: datetime) -> croniter:
    return croniter(text, start, ret_type=datetime, second_at_beginning=text == SECONDS_FIRST)


def _tz(zone: str) -> tzinfo:
    # The peers are quicker with the UTC of datetime than with that of zoneinfo.
    return UTC if zone == "UTC" else ZoneInfo(zone)
