"""How many seeds a simulation runs: few in ``make fast``, many in ``make soak``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T", bound=Callable[..., object])


def seeded(count: int, *, name: str = "seed", step: int = 1) -> Callable[[T], T]:
    """Run a test with each seed from 0 to ``count``, or those of ``LEASEHOLD_SEEDS=first:end``.

    ``LEASEHOLD_MAX_SEEDS`` is the limit of ``make fast``. With ``step`` the test gets each such
    seed, and runs those up to the next one itself.
    """
    usual = min(count, int(os.environ.get("LEASEHOLD_MAX_SEEDS", count)))
    given = os.environ.get("LEASEHOLD_SEEDS", f"0:{usual}")
    first, _, end = given.partition(":")
    values = range(int(first), int(end), step)

    def decorated(test: T) -> T:
        marked: T = pytest.mark.seeds(pytest.mark.parametrize(name, values)(test))
        return marked

    return decorated
