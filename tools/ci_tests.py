"""The tests as CI runs them: ``make test``, and one more try for at most three failed tests.

If these pass by themselves the run is green, and a line ``UNSTEADY:`` names each of them: it is a
defect to fix before anything else. Leaks and files that cannot be collected get no second try.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from test_run import PYTEST, TestRun, run_tests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_FAILED = 3


def verdict(first: TestRun, again: Callable[[Sequence[str]], TestRun]) -> tuple[int, list[str]]:
    """Return the exit code of the whole run, and its closing lines."""
    failed = sorted(first.failed)
    if first.green:
        return 0, []
    if first.broken or first.leaks or not 0 < len(failed) <= MAX_FAILED:
        return first.code, []
    print(f"{len(failed)} failed: run once more, by themselves", flush=True)
    second = again(failed)
    if not second.green or second.passed < len(failed):
        return second.code or 1, []
    return 0, [f"UNSTEADY: {each}" for each in failed]


def main() -> int:
    """Run them."""
    first = run_tests(["make", "test"], args="ARGS={report}")
    code, lines = verdict(first, lambda ids: run_tests([PYTEST, "-q", *ids], args="{report}"))
    print("\n".join(lines), end="\n" if lines else "", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
