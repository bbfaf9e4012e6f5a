"""``leasehold run`` as processes that look the same to others, or whose store is slow."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.command_runs import alive
from tests.support.command_wrappers import SHORT_S, Alone, log_of, witness, written
from tests.support.postgres import database
from tests.support.postgres_proxy import proxy
from tests.support.twin_process import HOST, PID

from leasehold.jobs import Outcome

pytestmark = pytest.mark.timeout(300)

TWIN = (sys.executable, "-m", "tests.support.twin_process")


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_two_nodes_with_the_same_host_name_and_process_id_are_two(
    undo: ExitStack, tmp_path: Path
) -> None:
    url, book = f"sqlite:///{tmp_path}/leases.db", tmp_path / "book"
    command = witness(book)
    first = Alone(url, tmp_path, "--standby", command=command, lease_s=SHORT_S, program=TWIN)
    undo.callback(first.end)
    written(book, 1)
    second = Alone(url, tmp_path, "--standby", command=witness(book), program=TWIN)
    undo.callback(second.end)
    second.says("waiting")
    first.popen.kill()
    assert [token for token, _ in written(book, 2)] == ["1", "2"]  # and not TWO
    second.send(signal.SIGTERM)
    second.code()
    newest, expired = log_of(url)
    assert expired.outcome is Outcome.EXPIRED
    assert newest.holder != expired.holder
    assert {(each.note.host, each.note.pid) for each in (newest, expired)} == {(HOST, PID)}


@pytest.mark.spec("J2")
@pytest.mark.server
@pytest.mark.parametrize(
    "leases",
    [pytest.param(0.5, marks=pytest.mark.soak), pytest.param(0.9, marks=pytest.mark.soak), 2.0],
)
def test_a_store_that_is_slow_for_one_node_lets_no_two_run(
    undo: ExitStack, tmp_path: Path, leases: float
) -> None:
    book = tmp_path / "book"
    url = undo.enter_context(database())
    slow = undo.enter_context(proxy(url))
    command = witness(book)
    first = Alone(slow.url, tmp_path, "--if-held", "fail", command=command, lease_s=SHORT_S)
    undo.callback(first.end)
    ((_, pid),) = written(book, 1)
    second = Alone(url, tmp_path, "--standby", command=witness(book))
    undo.callback(second.end)
    second.says("waiting")
    slow.late_s = leases * SHORT_S
    # An answer that comes later than a call may take is none: the lease is lost, and told in time.
    assert [token for token, _ in written(book, 2)] == ["1", "2"]  # and not TWO
    assert alive([pid]) == []
    slow.late_s = 0.0
    assert first.code() == 79
    assert "was lost" in first.said
