"""The Azurite of a test run: all workers have the same one, and it does not outlive them."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.hub import until

ROOT = Path(__file__).parents[3]
PROGRAM = (
    "from tests.support.azurite import shared_azurite\n"
    "import sys; print(shared_azurite().port, flush=True); sys.stdin.read()"
)

pytestmark = pytest.mark.server


@contextmanager
def worker(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the Azurite of a run until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LEASEHOLD_TEST_RUN": str(run)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).close()
    except urllib.error.HTTPError as refusal:
        refusal.close()
    except OSError:
        return False
    return True


def test_it_is_one_for_all_and_ends_with_the_last_of_them_though_they_are_killed(
    tmp_path: Path,
) -> None:
    with worker(tmp_path) as first, worker(tmp_path) as second:
        port = port_of(first)
        assert port_of(second) == port
        first.kill()
        first.wait()
        assert answers(port)
        # Another one comes, and leaves in good order.
        with worker(tmp_path) as third:
            assert port_of(third) == port
            third.communicate()
        assert third.returncode == 0
        assert answers(port)
        second.kill()
        second.wait()
        until(lambda: not answers(port))
    with worker(tmp_path) as fourth:
        again = port_of(fourth)
        assert answers(again)
        fourth.communicate()
        assert fourth.returncode == 0
        # The last one that leaves waits for its end.
        assert not answers(again)
