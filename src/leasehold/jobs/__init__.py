"""Jobs that run one at a time: a reservation of one or more names, under one lease.

``reserve`` and ``try_reserve`` for one job, with ``async`` faces; ``Reserver`` for many, by name.
"""

from __future__ import annotations

from leasehold.jobs.asynchronous import AsyncReservation, reserve_async, try_reserve_async
from leasehold.jobs.entry import Outcome
from leasehold.jobs.policy import OnCrash
from leasehold.jobs.reservation import Reservation, reserve, try_reserve
from leasehold.jobs.reserver import Reserver
from leasehold.jobs.wish import Done, Held

__all__ = [
    "AsyncReservation",
    "Done",
    "Held",
    "OnCrash",
    "Outcome",
    "Reservation",
    "Reserver",
    "reserve",
    "reserve_async",
    "try_reserve",
    "try_reserve_async",
]
