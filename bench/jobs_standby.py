"""How soon a standby is active: after ``kill -9`` of the active one, and after an orderly stop.

Both are real processes, ``leasehold run --standby``, on one SQLite store. Time is counted from the
signal to the first word of the command that the standby has started. Of several rounds the worst
counts.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import Bar, Row, at_most, cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_S = 0.001
_LIMIT_S = 60.0
_BEHIND_A_RENEWAL = 0.05  # of the lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    lease_s: float
    rounds: int


FULL = Sizes(lease_s=5.0, rounds=4)
SMALL = Sizes(lease_s=1.0, rounds=1)


@dataclass(kw_only=True)
class Scene:
    """One that is active and one that stands by; what they start writes a line."""

    folder: Path
    lease_s: float
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    made: int = 0

    def add(self) -> None:
        """Start a node, and wait until it is active or waits."""
        book, errors = self.folder / "book", self.folder / f"errors{self.made}"
        self.made += 1
        words = ["run", "--job", "service", "--standby", "--lease", f"{self.lease_s}s"]
        store = f"sqlite:///{self.folder}/leases.db"
        script = f"echo $LEASEHOLD_EPOCH >> {book}; exec sleep 1000"
        with errors.open("wb") as told:
            node = subprocess.Popen(  # noqa: S603 - our own program
                [
                    *(sys.executable, "-c", "from leasehold.cli import main; main()"),
                    *(*words, "--store", store, "--", "sh", "-c", script),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
            )
        self.nodes.append(node)
        word = "waiting" if len(self.nodes) > 1 else "active"
        _until(lambda: word in errors.read_text())

    def runs(self) -> int:
        """How many commands were started."""
        book = self.folder / "book"
        return book.read_text().count("\n") if book.exists() else 0

    def fail_over_s(self, number: signal.Signals) -> float:
        """Have the active one replaced; the time it took."""
        before = self.runs()
        active = self.nodes.pop(0)
        began_s = time.monotonic()
        active.send_signal(number)
        _until(lambda: self.runs() > before)
        took_s = time.monotonic() - began_s
        active.wait()
        return took_s


def rows(sizes: Sizes = FULL) -> list[Row]:
    """After a crash as a part of the lease, after an orderly stop in seconds."""
    with _scene(sizes) as scene:
        crashes = [_round(scene, signal.SIGKILL) for _ in range(sizes.rounds)]
        stops = [_round(scene, signal.SIGTERM) for _ in range(sizes.rounds)]
    name = "standby runs the command"
    return [
        cost(
            f"{name} after kill -9 of the active, over the lease",
            max(crashes) / sizes.lease_s,
            bar=at_most(1.3),
        ),
        cost(f"{name} after an orderly stop, s", max(stops), bar=Bar(words="< 1", most=0.999)),
    ]


def _round(scene: Scene, number: signal.Signals) -> float:
    scene.add()
    # Not in step with the renewals: the worst is right behind one.
    time.sleep(scene.lease_s * _BEHIND_A_RENEWAL * scene.made)
    return scene.fail_over_s(number)


@contextmanager
def _scene(sizes: Sizes) -> Iterator[Scene]:
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-")))
        scene = Scene(folder=folder, lease_s=sizes.lease_s)
        undo.callback(_end, scene)
        scene.add()
        _until(lambda: scene.runs() == 1)
        yield scene


def _end(scene: Scene) -> None:
    for node in scene.nodes:
        node.kill()
        node.wait()


def _until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while not true():
        if time.monotonic() > end_s:
            raise TimeoutError("it does not happen")
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    for each in rows(SMALL if "--small" in sys.argv else FULL):
        print(each)
