"""Jobs that run one at a time, and each occurrence of a schedule once.

``reserve`` and ``try_reserve`` reserve one job and have ``async`` variants; ``Reserver`` reserves
many, by name; ``job`` and ``Worker`` run functions by schedules. ``leasehold run`` is in
``command``.

A job is the key ``job/<name>``. Its log is the history of the key: a term begins and ends in the
same step as the reservation, with a note (``run_log``). The key's checkpoint records which
occurrences were started and done. The requests of operators are the checkpoints of keys beside it
(``operator_requests``).

=============================  ==============================================================
``claimant`` on ``holding``    one reservation, under its own lease
``keyring`` on ``holding``     many keys under one lease; concurrent calls share a request
``request``, ``reservation``   a claimant in its own thread, and its API, also for asyncio
``reserver``                   a keyring in its own thread, by name
``worker``                     functions, schedules, services
``command``                    commands, in a session that is ended in time
``fences``                     a table and a file that compare the epoch
=============================  ==============================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.jobs.policy import CatchUp, OnCrash, Overlap, Policy
    from leasehold.jobs.reservation import (
        AsyncReservation,
        Reservation,
        reserve,
        reserve_async,
        try_reserve,
        try_reserve_async,
    )
    from leasehold.jobs.reserver import Reserver
    from leasehold.jobs.run_log import Outcome
    from leasehold.jobs.wish import Done, Held
    from leasehold.jobs.worker.definition import Job, job
    from leasehold.jobs.worker.run import Run
    from leasehold.jobs.worker.worker import Worker

__all__ = [
    "AsyncReservation",
    "CatchUp",
    "Done",
    "Held",
    "Job",
    "OnCrash",
    "Outcome",
    "Overlap",
    "Policy",
    "Reservation",
    "Reserver",
    "Run",
    "Worker",
    "job",
    "reserve",
    "reserve_async",
    "try_reserve",
    "try_reserve_async",
]

_HOMES = {
    "AsyncReservation": "leasehold.jobs.reservation",
    "CatchUp": "leasehold.jobs.policy",
    "Done": "leasehold.jobs.wish",
    "Held": "leasehold.jobs.wish",
    "Job": "leasehold.jobs.worker.definition",
    "OnCrash": "leasehold.jobs.policy",
    "Outcome": "leasehold.jobs.run_log",
    "Overlap": "leasehold.jobs.policy",
    "Policy": "leasehold.jobs.policy",
    "Reservation": "leasehold.jobs.reservation",
    "Reserver": "leasehold.jobs.reserver",
    "Run": "leasehold.jobs.worker.run",
    "Worker": "leasehold.jobs.worker.worker",
    "job": "leasehold.jobs.worker.definition",
    "reserve": "leasehold.jobs.reservation",
    "reserve_async": "leasehold.jobs.reservation",
    "try_reserve": "leasehold.jobs.reservation",
    "try_reserve_async": "leasehold.jobs.reservation",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
