"""Run the suite N times idle, N times beside two busy loops and once on one core.

``tools/steady N`` prints a line for each run, then every test that ever failed with the runs it
failed in. The whole output of each run and of each failed test lies in ``.steady/``. The exit code
is 0 if all runs were green.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from test_run import ROOT, TestRun, run_tests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PLACE = ROOT / ".steady"
BUSY_LOOPS = 2
LAST_LINES = 40


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Have this many processes that do nothing but count."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def plan(count: int) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return the runs: a name, the number of busy loops, and what stands before the command."""
    core = str(min(os.sched_getaffinity(0)))
    idle = [(f"idle-{number}", 0, ()) for number in range(1, count + 1)]
    beside = [(f"busy-{number}", BUSY_LOOPS, ()) for number in range(1, count + 1)]
    return [*idle, *beside, ("one-core", 0, ("taskset", "-c", core))]


def summary(runs: dict[str, TestRun]) -> list[str]:
    """Return every test that ever failed, with its runs and the end of what it printed."""
    failed: dict[str, list[str]] = {}
    for name, run in runs.items():
        for each in [*run.failed, *run.broken, *(f"leak: {leak}" for leak in run.leaks)]:
            failed.setdefault(each, []).append(name)
    green = sum(run.green for run in runs.values())
    lines = [f"{green} of {len(runs)} runs are green"]
    for test, names in sorted(failed.items()):
        lines += ["", f"FAILED in {', '.join(names)}: {test}"]
        said = runs[names[0]].failed.get(test, runs[names[0]].broken.get(test, ""))
        lines += [f"    {line}" for line in said.splitlines()[-LAST_LINES:]]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run them all, whatever fails."""
    parser = argparse.ArgumentParser(prog="tools/steady", description=__doc__)
    parser.add_argument("count", type=int, help="runs idle, and as many beside busy loops")
    parser.add_argument("--only", default="", help="only runs whose name begins with this")
    given = parser.parse_args(argv)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    runs: dict[str, TestRun] = {}
    for name, loops, before in plan(given.count):
        if not name.startswith(given.only):
            continue
        began_s = time.monotonic()
        with busy(loops):
            run = run_tests(
                [*before, "make", "test"], args="ARGS={report}", log=PLACE / f"{name}.log"
            )
        minutes, seconds = divmod(round(time.monotonic() - began_s), 60)
        print(f"{name:10} {run.words()}, {minutes} min {seconds:02} s", flush=True)
        runs[name] = run
    print("\n".join(summary(runs)))
    return 0 if all(run.green for run in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
