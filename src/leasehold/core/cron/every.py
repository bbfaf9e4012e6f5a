"""Intervals: ``every 30s``, counted from 1970, so that all machines agree without talking."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.cron.instants import FIRST_S, LAST_S, at_s, ceil_s, floor_s
from leasehold.errors import BadSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from zoneinfo import ZoneInfo

_WORDS = re.compile(r"every\s+([0-9]{1,9})\s*([smhd])", re.IGNORECASE)
_UNITS = {"s": (1, "second"), "m": (60, "minute"), "h": (3_600, "hour"), "d": (86_400, "day")}
_LONGEST_S = 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Each multiple of a length of time since 1970-01-01 00:00:00 UTC. Clock changes do nothing."""

    text: str
    tz: ZoneInfo
    length_s: int

    def next(self, after: datetime) -> datetime | None:
        """The first moment after this one; None if the calendar ends before."""
        start_s = max(floor_s(after), FIRST_S)
        found_s = start_s - start_s % self.length_s + self.length_s
        return at_s(found_s) if found_s <= LAST_S else None

    def previous(self, before: datetime) -> datetime | None:
        """The last moment before this one; None if the calendar begins after."""
        end_s = min(ceil_s(before), LAST_S) - 1
        found_s = end_s - end_s % self.length_s
        return at_s(found_s) if found_s >= FIRST_S else None

    def occurrences(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """All moments after the first and up to the second."""
        start_s = max(floor_s(after), FIRST_S)
        first_s = start_s - start_s % self.length_s + self.length_s
        return map(at_s, range(first_s, min(floor_s(until), LAST_S) + 1, self.length_s))

    def explain(self) -> str:
        """The schedule in words."""
        for size_s, name in reversed(_UNITS.values()):
            count, rest_s = divmod(self.length_s, size_s)
            if not rest_s:
                length = f"{count} {name}s" if count > 1 else name
                return f"every {length}, counted from 1970-01-01 00:00:00 UTC"
        raise AssertionError(self.length_s)


def every_of(text: str, *, tz: ZoneInfo) -> Every:
    """``every 30s``, ``every 5m``, ``every 2h``, ``every 1d``.

    Raises:
        BadSchedule: it is written in another way, or not 1 s to 366 d long.
    """
    match = _WORDS.fullmatch(text)
    if match is None:
        raise BadSchedule(
            "it is no interval: write 'every', a whole number and s, m, h or d, such as every 30s"
        )
    length_s = int(match[1]) * _UNITS[match[2].lower()][0]
    if not 1 <= length_s <= _LONGEST_S:
        raise BadSchedule("the interval must be 1 s to 366 d long: choose another")
    return Every(text=text, tz=tz, length_s=length_s)
