"""Jobs that run one at a time, and each occurrence of a schedule once.

``reserve`` and ``try_reserve`` are for one job, with ``async`` faces; ``Reserver`` is for many, by
name; ``job`` and ``Worker`` are for functions with schedules. ``leasehold run`` is ``command``.

A job is the key ``job/<name>``. Its log is the history of the key: a term begins and ends in the
same step as the reservation, with a note (``run_log``). The key's checkpoint says which occurrences
were started and done. What operators want is in the checkpoints of keys beside it
(``operator_requests``).

=============================  ==============================================================
``claimant`` on ``holding``    one wish, under a lease of its own
``keyring`` on ``holding``     many keys, under one lease; calls that come together go together
``request``, ``reservation``   a claimant in a thread of its own, and its face, also for asyncio
``reserver``                   a keyring in a thread of its own, by name
``worker``                     functions, schedules, services
``command``                    any command, in a session that is ended in time
``fences``                     a table and a file that compare the token
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
