"""How the end of a scheduled command is judged."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from leasehold.jobs.command.command_run import CommandEnd
from leasehold.jobs.command.scheduled import CommandFailed, ScheduledWrapper
from leasehold.jobs.worker.job_state import RunCrashed


class Told(threading.Event):
    """Is set by the worker at last: when somebody waits for it."""

    waited = False

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.waited = True
        self.set()
        return True


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("ended", "waits"),
    [
        (CommandEnd(exit_code=143, stopped_by=signal.SIGTERM), True),
        (CommandEnd(exit_code=130, stopped_by=signal.SIGINT), True),
        (CommandEnd(exit_code=1), False),
    ],
)
def test_a_command_that_a_signal_ended_is_judged_when_the_worker_knows_of_the_signal(
    ended: CommandEnd, waits: bool
) -> None:
    wrapper = object.__new__(ScheduledWrapper)
    wrapper._echo = lambda _words: None
    run = SimpleNamespace(lost=Told(), exit_code=None, words="")
    with pytest.raises(CommandFailed):
        wrapper._finish(run, ended)  # type: ignore[arg-type]
    assert run.lost.waited == waits


def test_a_command_whose_guard_was_killed_has_crashed_and_not_failed() -> None:
    wrapper = object.__new__(ScheduledWrapper)
    wrapper._echo = lambda _words: None
    run = SimpleNamespace(lost=Told(), exit_code=None, words="")
    with pytest.raises(RunCrashed, match="guard of the command was killed"):
        wrapper._finish(run, CommandEnd(exit_code=137, crashed=True))  # type: ignore[arg-type]
