"""How long a blob lease may last: the service's own limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from leasehold.errors import InvalidDuration
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from datetime import timedelta

SHORTEST_S = 15.0
LONGEST_S = 60.0


def lease_s(duration: timedelta) -> float:
    """Return the duration in seconds.

    Raises:
        InvalidDuration: outside 15 to 60 seconds, or not a whole number of them.
    """
    seconds = seconds_of(duration, what="lease", min_s=-math.inf, max_s=math.inf)
    if not SHORTEST_S <= seconds <= LONGEST_S or not seconds.is_integer():
        raise InvalidDuration(
            f"a lease of {seconds:g} s can not be had from Azure Blob, whose own leases last whole "
            f"seconds, {SHORTEST_S:g} s to {LONGEST_S:g} s: say --lease 30s, or "
            "timedelta(seconds=30)"
        )
    return seconds
