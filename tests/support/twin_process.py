"""``leasehold`` as a process that has the same host name and process id as all its twins."""

from __future__ import annotations

from types import SimpleNamespace

from leasehold.cli.app import run
from leasehold.jobs import holding

HOST, PID = "twin", 7

if __name__ == "__main__":
    # As in two containers: only what the others see of it is changed, not what it does.
    vars(holding).update(host_name=lambda: HOST, os=SimpleNamespace(getpid=lambda: PID))
    run()
