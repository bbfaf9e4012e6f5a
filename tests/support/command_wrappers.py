"""Wrappers of commands for tests: in a thread of this process, or as processes of their own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
from tests.support.command_runs import CLOCK, ROOT, until

from leasehold.jobs.command.command_run import CommandTimeouts
from leasehold.jobs.command.exit_status import CommandPlan, ExitStatus
from leasehold.jobs.command.one_shot import Wrapper
from leasehold.jobs.command.signal_queue import SignalQueue
from leasehold.jobs.run_log import RunLogEntry, log_entries
from leasehold.names import job_key
from leasehold.stores import open_store

LEASEHOLD = Path(sys.executable).with_name("leasehold")
JOB = "nightly"
# So long that nobody loses it because the machine is busy.
LEASE_S = 60.0
LEASE = timedelta(seconds=LEASE_S)
# For one that is to lose it, because it is killed, stopped or cut off from the store.
SHORT_S = 4.0
# For one that is to hear of an order soon: it does when it renews, four times in each lease.
BRISK_S = 6.0


def timeouts_of(lease_s: float) -> CommandTimeouts:
    return CommandTimeouts(lease_s=lease_s, stop_margin_s=lease_s / 5, stop_timeout_s=15.0)


TIMEOUTS = timeouts_of(LEASE_S)


def plan(url: str, *command: str, lease_s: float = LEASE_S, **rest: Any) -> CommandPlan:
    given: dict[str, Any] = {
        "job": JOB,
        "command": command,
        "store": url,
        "lease": timedelta(seconds=lease_s),
        "timeouts": timeouts_of(lease_s),
        **rest,
    }
    return CommandPlan(**given)


@dataclass(kw_only=True)
class Threaded:
    """A wrapper in a thread. ``signalled`` is what its process would be sent."""

    plan: CommandPlan
    signals: SignalQueue = field(default_factory=SignalQueue)
    said: list[str] = field(default_factory=list)
    status: ExitStatus | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        wrapper = Wrapper(
            self.plan,
            signals=self.signals,
            clock=CLOCK,
            rng=random.Random(1),
            echo=self.said.append,
        )
        self.status = wrapper.run()

    def signalled(self, number: int) -> None:
        self.signals._on_signal(number, None)

    def end(self, *, within_s: float = 100.0) -> ExitStatus:
        self._thread.join(within_s)
        assert self.status is not None, f"it does not end: {self.said}"
        return self.status


def once(url: str, *command: str, lease_s: float = LEASE_S, **rest: Any) -> ExitStatus:
    """Run one to its end."""
    signals = SignalQueue()
    try:
        wrapper = Wrapper(
            plan(url, *command, lease_s=lease_s, **rest),
            signals=signals,
            clock=CLOCK,
            rng=random.Random(1),
            echo=lambda _words: None,
        )
        return wrapper.run()
    finally:
        signals.close()


def log_of(url: str, job: str = JOB) -> list[RunLogEntry]:
    """The reservation log, newest first."""

    async def read() -> list[RunLogEntry]:
        async with open_store(url) as store:
            return log_entries(await store.history(job_key(job)))

    return anyio.run(read)


class Alone:
    """``leasehold run`` as a process. Its command writes its token and process id into a file."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *options: str,
        command: list[str],
        lease_s: float = LEASE_S,
        program: Sequence[str | Path] = (LEASEHOLD,),
    ) -> None:
        self.errors = folder / f"errors-{len(list(folder.iterdir()))}"
        words = ["--job", JOB, "--store", url, "--lease", f"{lease_s:g}s", *options, "--", *command]
        with self.errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                [*program, "run", *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    @property
    def said(self) -> str:
        return self.errors.read_text()

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def says(self, words: str) -> None:
        until(lambda: words in self.said)

    def code(self) -> int:
        return self.popen.wait(100)

    def end(self) -> None:
        """Kill it, and so all that it has started. A test that failed shows what it said."""
        print(self.said)
        with suppress(ProcessLookupError):
            os.kill(self.popen.pid, signal.SIGCONT)
        self.popen.kill()
        self.popen.wait()


def witness(book: Path, then: str = "exec sleep 600") -> list[str]:
    """A command that writes ``token pid``, and ``TWO`` if the one before it still lives."""
    script = (
        f'last=$(tail -n 1 {book} 2>/dev/null | cut -d" " -f2); '
        f'if [ -n "$last" ] && kill -0 "$last" 2>/dev/null; then echo TWO 0 >> {book}; fi; '
        f'echo "$LEASEHOLD_EPOCH $$" >> {book}; {then}'
    )
    return ["sh", "-c", script]


def written(book: Path, lines: int) -> list[tuple[str, int]]:
    """Wait for so many lines of the witnesses."""

    def read() -> list[tuple[str, int]]:
        text = book.read_text() if book.exists() else ""
        whole = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        return [(token, int(pid)) for token, pid in (line.split() for line in whole)]

    until(lambda: len(read()) >= lines)
    return read()
