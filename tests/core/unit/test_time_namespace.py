"""The boot clock is that of the machine, whatever time namespace a container has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leasehold.clock import SystemClock, boottime_offset_s

AHEAD_S = 1_000_000
READ = "from leasehold.clock import SystemClock; print(SystemClock().boottime_s())"
FORKED = """
import ctypes, os, sys
from leasehold.clock import SystemClock
before_s = SystemClock().boottime_s()
assert ctypes.CDLL(None).unshare(0x80) == 0  # a time namespace, for the children only
with open("/proc/self/timens_offsets", "w") as file:
    file.write(f"boottime {sys.argv[1]} 0")
assert SystemClock().boottime_s() - before_s < 1000
pid = os.fork()
if not pid:
    print(SystemClock().boottime_s(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0.0),
        ("monotonic      -86400         0\nboottime        172800 500000000\n", 172_800.5),
        ("monotonic  1 0\nboottime  -7  250000000\n", -6.75),
        ("", 0.0),
    ],
)
def test_the_offset_of_a_namespace_is_read(offsets: str, found: float) -> None:
    assert boottime_offset_s(offsets) == found


@pytest.mark.process
@pytest.mark.parametrize("how", ["executed", "forked"])
def test_the_clock_is_the_same_in_another_time_namespace(how: str) -> None:
    """Where the kernel does not permit one to make a namespace, the same without one."""
    enters = ["unshare", "--time", "--boottime", str(AHEAD_S), "--fork"]
    may = subprocess.run([*enters, "true"], capture_output=True, check=False).returncode == 0
    command = [sys.executable, "-c", READ]
    if may:
        command = (
            [*enters, *command]
            if how == "executed"
            else [sys.executable, "-c", FORKED, str(AHEAD_S)]
        )
    clock = SystemClock()
    earliest_s = clock.boottime_s()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert earliest_s <= float(done.stdout) <= clock.boottime_s()
