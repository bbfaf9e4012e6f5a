"""``leasehold run`` as processes, and a store that is away and back, again and again."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from tests.support.command_runs import alive, until
from tests.support.command_wrappers import SHORT_S, Alone, log_of, witness, written

from leasehold.jobs import Outcome

pytestmark = pytest.mark.timeout(300)

BLINK_S = SHORT_S / 4  # as long as two renewals are apart


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def nodes(url: str, tmp_path: Path) -> Iterator[list[Alone]]:
    """Two that stand by for each other. Their commands stop only when they are killed."""
    command = witness(tmp_path / "book", "trap '' TERM; while :; do sleep 0.1; done")
    with ExitStack() as undo:
        words = (url, tmp_path, "--standby")
        made = [Alone(*words, command=command, lease_s=SHORT_S) for _ in range(2)]
        for each in made:
            undo.callback(each.end)
        yield made


@contextmanager
def away(database: Path) -> Iterator[None]:
    """Nobody can write meanwhile."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.spec("J2", "J7")
def test_a_command_on_a_store_that_flaps(url: str, nodes: list[Alone], tmp_path: Path) -> None:
    book, database, rng = tmp_path / "book", tmp_path / "leases.db", random.Random(7)
    written(book, 1)
    for goes_on in (True, False, True):
        threading.Event().wait(rng.uniform(0.0, 1.0) * BLINK_S)
        _, before = written(book, 1)[-1]
        with away(database):
            if goes_on:
                threading.Event().wait(BLINK_S)
            else:
                until(lambda before=before: not alive([before]))  # type: ignore[misc]
        until(lambda: bool(alive([written(book, 1)[-1][1]])))  # it runs, again or still
    tokens = [token for token, _ in written(book, 1)]
    assert "TWO" not in tokens
    assert [int(token) for token in tokens] == sorted({int(token) for token in tokens})
    assert len(tokens) > 1
    lost = [each.outcome for each in log_of(url) if each.epoch < int(tokens[-1]) and each.ran]
    assert set(lost) <= {Outcome.LOST, Outcome.EXPIRED}
    assert [each.popen.poll() for each in nodes] == [None, None]
    assert "was lost" in "".join(each.said for each in nodes)
