"""Jobs: standbys that take over, reservations beside a row in a table, schedules, a day of them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from bench import jobs_cron, jobs_reservations, jobs_rolling, jobs_schedulers, jobs_standby
from bench.report import Job, Part, main

if TYPE_CHECKING:
    from collections.abc import Sequence


def _jobs(small: bool) -> Sequence[Job]:  # noqa: FBT001
    standby = jobs_standby.SMALL if small else jobs_standby.FULL
    reservations = jobs_reservations.SMALL if small else jobs_reservations.FULL
    cron = jobs_cron.SMALL if small else jobs_cron.FULL
    jobs, hours = (3, 0.1) if small else (1000, 24.0)
    rolling = partial(jobs_rolling.rows, occurrences=2 if small else 200)
    return [
        Job(what="standby", run=partial(jobs_standby.rows, standby)),
        Job(what="reservations", run=partial(jobs_reservations.rows, reservations)),
        Job(what="a rolling restart", run=rolling),
        Job(what="cron", run=partial(jobs_cron.rows, cron)),
        Job(what="a simulated day", run=partial(jobs_schedulers.rows, jobs=jobs, hours=hours)),
    ]


PART = Part(
    name="jobs",
    about="Standbys are real processes on SQLite. A reservation is two durable steps with a "
    "history; the peer is one transaction that inserts a row and deletes it, as durable. A "
    "simulated day: three workers whose clocks differ, one store in memory.",
    jobs=_jobs,
)

if __name__ == "__main__":
    sys.exit(main([PART], sys.argv[1:]))
