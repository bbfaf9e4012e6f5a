"""Work in a forked process that dies by SIGKILL at its n-th step."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


class Steps:
    """Counts what the wrapped functions do; the process is killed before the n-th."""

    def __init__(self, dies_before: int) -> None:
        self._left = dies_before

    def step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    @contextmanager
    def counting(self, *places: tuple[Any, str]) -> Iterator[None]:
        """Each call of these is a step; the end of the block is one too."""
        with contextmanager(_patched)(self, places):
            yield
        self.step()


def _patched(steps: Steps, places: Sequence[tuple[Any, str]]) -> Iterator[None]:
    patches = [patch.object(owner, name, _counted(steps, owner, name)) for owner, name in places]
    for each in patches:
        each.start()
    yield
    for each in patches:
        each.stop()


def _counted(steps: Steps, owner: Any, name: str) -> Callable[..., Any]:
    real = getattr(owner, name)

    def call(*values: Any, **named: Any) -> Any:
        steps.step()
        return real(*values, **named)

    return call


def forked(work: Callable[[], None]) -> int:
    """Begin ``work`` in a child; return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - told by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for it: 0, or the code of its failure, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
