"""Whole sessions of processes can be hurt, as campaigns of faults do it."""

from __future__ import annotations

import subprocess
import sys

from tests.support import sessions

# A child in a process group of its own, which still belongs to the session.
FAMILY = """
import subprocess, sys
wait = "input()"
child = subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, process_group=0)
print(child.pid, flush=True)
input()
"""


def test_a_session_is_stopped_resumed_and_killed_with_all_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        session = parent.pid
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            found = sessions.processes(session)
            assert {each.pid for each in found} == {session, child}
            assert [each.pid for each in sessions.below(session, found)] == [session, child]
            sessions.stop(session)
            assert {each.state for each in sessions.processes(session)} == {"T"}
            sessions.go_on(session)
        finally:
            sessions.kill(session)
        assert parent.wait(100) == -9
        assert not sessions.processes(session)
