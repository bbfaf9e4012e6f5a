"""A job that runs once each night over all nodes, and whose report no sleeper can overwrite.

    python examples/nightly_job.py

with the project's environment active (``. .venv/bin/activate``).
It makes a store in a temporary directory and plays three nodes one after the other. In your own
programs give all nodes the same store: SQLite on one machine, PostgreSQL on several.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leasehold import LeaseholdError
from leasehold.errors import FencedWrite
from leasehold.jobs import Reservation, try_reserve
from leasehold.jobs.fences import FencedPath

NIGHT = datetime(2026, 3, 1, 2, 30, tzinfo=UTC)


def nightly(node: str, night: datetime, place: Path) -> int:
    """What each node calls when the time has come; returns its epoch, or 0."""
    job = try_reserve("nightly", store=f"sqlite:///{place}/leases.db", occurrence=night)
    if not isinstance(job, Reservation):  # Held or Done: who has it, or had it
        print(f"{node}: nothing to do for {night:%d %B}")
        return 0
    with job:  # kept alive in the background, released at the end
        with FencedPath(place / "report.csv").replace_text(job) as report:
            for line in range(3):
                job.check()  # raises LeaseLost if somebody else may have it by now
                report.write(f"{night:%Y-%m-%d},{line}\n")
        print(f"{node}: wrote the report of {night:%d %B} with epoch {job.epoch}")
        return job.epoch


def main(place: Path) -> None:
    """Two nights, and a node that slept through the second one."""
    first = nightly("node 1", NIGHT, place)
    nightly("node 2", NIGHT, place)
    nightly("node 2", NIGHT + timedelta(days=1), place)
    try:
        with FencedPath(place / "report.csv").replace_text(first) as report:
            report.write("what node 1 was about to write before it fell asleep\n")
    except FencedWrite:
        print(f"node 1: wakes up, and its epoch {first} is refused")
    print("the report is of", (place / "report.csv").read_text(encoding="utf-8")[:10])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        try:
            main(Path(directory))
        except LeaseholdError as error:
            sys.exit(f"error: {error}")
