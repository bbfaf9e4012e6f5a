"""A process that reserves a job and works on it, for tests that send it signals.

Writes one JSON object per line to stdout. SIGTERM releases it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from datetime import timedelta
from itertools import count

from leasehold.clock import SystemClock
from leasehold.errors import LeaseLost
from leasehold.jobs import reserve

CLOCK = SystemClock()


def say(event: str, **what: object) -> None:
    line = json.dumps({"event": event, "when_s": CLOCK.boottime_s(), **what}) + "\n"
    os.write(1, line.encode())


def main(url: str, lease_s: float) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    say("ready")
    with reserve(
        "nightly",
        store=url,
        lease=timedelta(seconds=lease_s),
        also=["place"],
        on_lost=lambda reason: say("lost", reason=reason),
    ) as job:
        say("reserved", epoch=job.epoch, holder=job.holder)
        try:
            # A follower goes on from where time has got to, as real positions would.
            for number in count(int(CLOCK.boottime_s() * 1000)):
                job.mark(number)
                job.progress(f"at {number}")
                if stop.wait(0.05):
                    break
        except LeaseLost as lost:
            say("refused", kind=type(lost).__name__, lost=job.lost.wait(100))
    say("released")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
