"""How long a blob lease may last: the service's own limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import InvalidDuration
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from datetime import timedelta

SHORTEST_S = 15.0
LONGEST_S = 60.0


def lease_s(duration: timedelta) -> float:
    """The duration in seconds.

    Raises:
        InvalidDuration: outside 15 to 60 seconds, or no whole number of them.
    """
    seconds = seconds_of(duration, what="blob lease", least_s=SHORTEST_S, most_s=LONGEST_S)
    if not seconds.is_integer():
        raise InvalidDuration(
            f"a blob lease lasts a whole number of seconds from {SHORTEST_S:g} s to "
            f"{LONGEST_S:g} s, not {seconds:g} s"
        )
    return seconds
