"""How many seeds a simulation runs: few in ``make test``, other and many more in ``make soak``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T", bound=Callable[..., object])


def seeded(count: int, *, name: str = "seed", step: int = 1) -> Callable[[T], T]:
    """Run a test with each seed from 0 to ``count``, or those of ``LEASEHOLD_SEEDS=first:end``.

    With ``step`` the test gets each such seed, and runs those up to the next one itself.
    """
    given = os.environ.get("LEASEHOLD_SEEDS", f"0:{count}")
    first, _, end = given.partition(":")
    values = range(int(first), int(end), step)

    def decorated(test: T) -> T:
        marked: T = pytest.mark.seeds(pytest.mark.parametrize(name, values)(test))
        return marked

    return decorated
