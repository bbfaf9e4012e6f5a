"""The long proof: many seeds of each simulation, random kills of processes, faults on Spark.

``make soak`` runs all steps once; ``make soak HOURS=n`` goes on with further seeds until n hours
are over. Each step that has ended is noted in ``.soak/state.json``: a soak that was interrupted
continues there, one that has ended begins again. The last page is a summary; the exit code is 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from test_run import PYTEST, ROOT, run_tests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PLACE = ROOT / ".soak"
STATE = PLACE / "state.json"
SEEDS = 10_000
FAULTS = 100
# Name, the tests that take seeds, and how many seeds one step has.
SIMULATIONS = (
    ("members", "tests/lease/simulation/test_fault_runs.py", 500),
    ("pumps", "tests/processor/simulation/test_pumps.py", 500),
    ("jobs on a bad store", "tests/jobs/simulation", 50),
    ("requests to Azure Blob", "tests/azure/unit/test_azure_blob_schedules.py", 100),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command. ``name`` is unique; ``part`` is its row in the summary."""

    name: str
    part: str
    size: int
    alone: bool
    seeds: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a step has ended."""

    name: str
    part: str
    size: int
    took_s: float
    failed: tuple[str, ...]


def steps(round_: int, seeds: int, faults: int) -> Iterator[Step]:
    """Return all steps of a round; each round has other seeds."""
    first = round_ * seeds
    for part, target, chunk in SIMULATIONS:
        for at in range(first, first + seeds, chunk):
            end = min(at + chunk, first + seeds)
            yield Step(
                name=f"{part} {at}:{end}",
                part=part,
                size=end - at,
                alone=False,
                seeds=f"{at}:{end}",
                target=target,
            )
    yield Step(name=f"kills {round_}", part="kills of processes", size=1, alone=True)
    yield Step(name=f"spark {round_}", part="faults on Spark", size=faults, alone=True)


def perform(step: Step) -> Done:
    """Run one step to its end."""
    began_s = _now_s()
    log = PLACE / f"{step.name.replace(' ', '-').replace(':', '-')}.log"
    if step.part == "faults on Spark":
        failed = _campaign(step.size, log)
    else:
        words = [PYTEST, "-q", "-p", "no:cacheprovider"]
        words += [step.target, "-m", "seeds"] if step.target else ["--soak", "tests"]
        env = {"LEASEHOLD_SEEDS": step.seeds} if step.seeds else {}
        run = run_tests(words, args="{report}", log=log, env=env)
        failed = (*run.failed, *run.broken, *run.leaks)
        if run.code and not failed:
            failed = (f"exit code {run.code}: see {log.relative_to(ROOT)}",)
    took_s = round(_now_s() - began_s, 1)
    return Done(name=step.name, part=step.part, size=step.size, took_s=took_s, failed=failed)


def summary(done: Sequence[Done]) -> list[str]:
    """Return the page: a row for each part, then each failure with the step that shows it."""
    lines = [f"{'part':24} {'steps':>6} {'size':>8} {'failed':>7} {'minutes':>8}", "-" * 57]
    for part in dict.fromkeys(each.part for each in done):
        mine = [each for each in done if each.part == part]
        bad = sum(bool(each.failed) for each in mine)
        minutes = sum(each.took_s for each in mine) / 60
        size = sum(each.size for each in mine)
        lines.append(f"{part:24} {len(mine):6} {size:8,} {bad:7} {minutes:8.1f}")
    for each in done:
        lines += [f"FAILED {each.name}: {what}" for what in each.failed]
    return lines


def soak(*, hours: float | None, seeds: int, faults: int, workers: int) -> tuple[list[Done], bool]:
    """Run rounds: one, or as many as fit into ``hours``. Continue an interrupted soak.

    Returns what has ended, and whether it ends with a whole round.
    """
    done = _noted()
    end_s = None if hours is None else _now_s() + hours * 3600
    round_ = 0
    while round_ == 0 or (end_s is not None and _now_s() < end_s):
        names = {each.name for each in done}
        left = [each for each in steps(round_, seeds, faults) if each.name not in names]
        for batch in ([s for s in left if not s.alone], *([s] for s in left if s.alone)):
            pool = ThreadPoolExecutor(workers)
            try:
                began = [pool.submit(_unless_late, each, end_s) for each in batch]
                for each in as_completed(began):
                    if (ended := each.result()) is not None:
                        done.append(ended)
                        _note(done)
                        word = "FAILED" if ended.failed else "passed"
                        print(f"{ended.name:40} {word} {ended.took_s:8.1f} s", flush=True)
            finally:
                pool.shutdown(cancel_futures=True)  # after Ctrl-C no other step begins
        round_ += 1
    expected = {each.name for number in range(round_) for each in steps(number, seeds, faults)}
    return done, expected <= {each.name for each in done}


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, and print the page."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=None, help="go on for this long")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each simulation a round")
    parser.add_argument("--faults", type=int, default=FAULTS, help="faults on Spark in a round")
    given = parser.parse_args(argv)
    PLACE.mkdir(exist_ok=True)
    workers = len(os.sched_getaffinity(0))
    try:
        done, whole = soak(
            hours=given.hours, seeds=given.seeds, faults=given.faults, workers=workers
        )
    except KeyboardInterrupt:
        print("\n".join(["interrupted; the same command continues", *summary(_noted())]))
        return 130
    if whole:
        STATE.unlink(missing_ok=True)  # the next soak begins again
    else:
        print("the time is over; the same command continues")
    print("\n".join(summary(done)))
    return 1 if any(each.failed for each in done) else 0


def _unless_late(step: Step, end_s: float | None) -> Done | None:
    return None if end_s is not None and _now_s() >= end_s else perform(step)


def _campaign(faults: int, log: Path) -> tuple[str, ...]:
    words = [sys.executable, "-m", "bench.chaos", "--faults", str(faults)]
    with log.open("wb") as output:
        code = subprocess.run(
            words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    return (f"exit code {code}: see {log.relative_to(ROOT)}",) if code else ()


def _noted() -> list[Done]:
    if not STATE.exists():
        return []
    found = json.loads(STATE.read_text(encoding="utf-8"))
    return [Done(**{**each, "failed": tuple(each["failed"])}) for each in found]


def _note(done: Sequence[Done]) -> None:
    draft = STATE.with_suffix(".draft")
    draft.write_text(json.dumps([asdict(each) for each in done]), encoding="utf-8")
    draft.replace(STATE)


def _now_s() -> float:
    return time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
