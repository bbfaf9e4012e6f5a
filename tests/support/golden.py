"""Golden runs: what each seed of the simulator led to, stored in ``tests/golden``.

A change that only moves or renames code leaves every story as it is. A change that alters a
decision of a member or a pump changes stories; its commit records them again and says why::

    .venv/bin/python -m tests.support.golden

The stories depend on how asyncio schedules tasks, which differs between versions of Python. They
are compared on the version that recorded them; on another one the seeds run without them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from leasehold.testing.sim.fault_run import run_faults
from leasehold.testing.sim.pump_run import run_pump_faults

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden"
PYTHON = "{}.{}".format(*sys.version_info)
KINDS: dict[str, tuple[int, Callable[[int], str]]] = {
    "members": (300, lambda seed: run_faults(seed).story),
    "pumps": (100, lambda seed: run_pump_faults(seed).story),
}


def changed_stories(kind: str, stories: Iterable[tuple[int, str]]) -> list[int]:
    """Return the seeds whose story is not the recorded one; seeds without a record are skipped."""
    golden = json.loads((GOLDEN_DIR / f"{kind}.json").read_text(encoding="utf-8"))
    if golden["python"] != PYTHON:
        return []
    known = dict(enumerate(golden["stories"]))
    return [seed for seed, story in stories if known.get(seed, story) != story]


def record() -> None:
    """Record the stories of all kinds again."""
    GOLDEN_DIR.mkdir(exist_ok=True)
    for kind, (count, story) in KINDS.items():
        golden = {"python": PYTHON, "stories": [story(seed) for seed in range(count)]}
        (GOLDEN_DIR / f"{kind}.json").write_text(
            json.dumps(golden, indent=1) + "\n", encoding="utf-8"
        )
        print(f"{kind}: {count} stories")


if __name__ == "__main__":
    record()
