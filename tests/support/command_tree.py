"""A command with a family: for tests that look whether all of it is killed.

One child is in a process group of its own, one in a session of its own whose parent has ended. All
ignore SIGTERM. Writes the process ids of all into the file that it is given, then waits for ever.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def wait_for_ever() -> None:
    while True:
        signal.pause()


def in_own_group() -> int:
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        wait_for_ever()
    return child


def in_own_session() -> int:
    """As daemons do: forked twice, so that its parent is gone."""
    told, telling = os.pipe()
    between = os.fork()
    if not between:
        os.setsid()
        daemon = os.fork()
        if daemon:
            os.write(telling, str(daemon).encode())
            os._exit(0)
        os.close(telling)
        wait_for_ever()
    os.close(telling)
    os.waitpid(between, 0)
    return int(os.read(told, 100))


def main(target: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    family = [os.getpid(), in_own_group(), in_own_session()]
    made = Path(f"{target}.new")
    made.write_text(" ".join(map(str, family)), encoding="ascii")
    made.replace(target)
    wait_for_ever()


if __name__ == "__main__":
    main(sys.argv[1])
