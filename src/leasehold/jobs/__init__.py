"""Jobs that run one at a time: a reservation of one or more names, under one lease."""

from __future__ import annotations

from leasehold.jobs.reservation import Reservation, reserve, try_reserve
from leasehold.jobs.wish import Held

__all__ = ["Held", "Reservation", "reserve", "try_reserve"]
