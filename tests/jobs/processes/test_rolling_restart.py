"""Workers are replaced while the other tests run: here it begins."""

from __future__ import annotations

import pytest
from tests.support.rolling_restart import RollingRestart


@pytest.mark.timeout(900)
def test_three_workers_begin_and_are_replaced_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """How it ends is seen in ``tests/jobs/processes/test_worker_processes.py``."""
    assert RollingRestart(tmp_path_factory).begun()
