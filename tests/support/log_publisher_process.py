"""A driver that writes batches to the log without Spark, and ends or stops at a given step.

Its one argument is a JSON object: ``url``, ``first`` and ``count`` (the batches of a query that it
commits in turn), ``rows`` of each, ``epoch``; and ``signal`` (``KILL`` or ``STOP``), which it sends
to itself at the ``times``-th call of the step ``at``. Writes a JSON line before that, and one for
each batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from tests.support.log_publisher import publisher, query_request, staged
from tests.support.pausing import pause_me

from leasehold.cli.fast_start import leave_pandas_out
from leasehold.errors import LeaseholdError
from leasehold.spark.log_writer import publisher as publisher_module


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(task_options: dict[str, Any]) -> None:
    calls, lock = 0, threading.Lock()

    def step(name: str) -> None:
        nonlocal calls
        if name != task_options.get("at"):
            return
        with lock:
            calls += 1
            if calls == task_options["times"]:
                say(at=name)
                if task_options["signal"] == "STOP":
                    pause_me(task_options["url"])
                else:
                    os.kill(os.getpid(), signal.SIGKILL)

    # So that a batch is sent in many deliveries.
    publisher_module._MAX_SYNC_FRAMES = 1
    opened = publisher(task_options["url"], step=step)
    for number in range(task_options["first"], task_options["first"] + task_options["count"]):
        files = staged(opened.plan(), f"b{number}", task_options["rows"], tasks=4)
        try:
            opened.commit(query_request(number, epoch=task_options["epoch"]), files)
        except LeaseholdError as error:
            opened.discard(files)
            say(batch=number, refused=type(error).__name__)
        else:
            say(batch=number)
    opened.close()


if __name__ == "__main__":
    leave_pandas_out()
    main(json.loads(sys.argv[1]))
