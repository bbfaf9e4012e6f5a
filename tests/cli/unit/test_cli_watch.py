"""``--watch``: a terminal is painted over, a pipe gets one page after the other; Ctrl-C ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import CommandLine
from tests.support.groups import Scene

ORDERS = ("orders", "billing")
LISTS = [
    ("groups", "ls"),
    ("groups", "show", *ORDERS),
    ("members", "ls", *ORDERS),
    ("partitions", "ls", *ORDERS),
    ("partitions", "ls", *ORDERS, "0"),
    ("partitions", "history", *ORDERS, "0"),
    ("checkpoints", "ls", *ORDERS),
]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(url=f"sqlite:///{tmp_path}/store.db")
    made.declare(range(2))
    made.join("a", 0)
    return made


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], scene: Scene
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, scene.url)


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_every_list_can_be_watched(
    leasehold: CommandLine, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasehold.clock import SystemClock

    looks = 0

    async def interrupted(self: SystemClock, seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert seconds == 2.0  # as often as --watch alone says
        if looks == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", interrupted)
    noun, verb, *rest = words
    done = leasehold(noun, verb, "--watch", *rest, "-ojson")  # it does not swallow the next word
    assert done.code == 0, done.err
    assert len(done.jsonl) == looks == 2


@pytest.mark.parametrize("every", ["1x", "0s", "2d", ""])
def test_a_wrong_time_is_refused(leasehold: CommandLine, every: str) -> None:
    done = leasehold("groups", "ls", f"--watch={every}")
    assert (done.code, done.out) == (2, "")
    assert "--watch" in done.err


def test_after_two_dashes_it_is_a_name(leasehold: CommandLine) -> None:
    done = leasehold("groups", "show", "--", "--watch", "billing")
    assert (done.code, "'--watch'" in done.err) == (3, True)


def test_a_store_that_goes_away_is_said_and_looked_at_again(
    leasehold: CommandLine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasehold.clock import SystemClock
    from leasehold.errors import StoreUnavailable
    from leasehold.stores.sqlite import SqliteStore

    groups, looks = SqliteStore.groups, 0

    async def away(self: SqliteStore) -> object:
        if looks == 1:
            raise StoreUnavailable("no answer within 3 s")
        return await groups(self)

    async def interrupted(self: SystemClock, seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SqliteStore, "groups", away)
    monkeypatch.setattr(SystemClock, "sleep", interrupted)
    done = leasehold("groups", "ls", "--watch", "-ojson")
    assert (done.code, len(done.jsonl)) == (0, 3)
    assert done.err.count("not as it is now: no answer within 3 s") == 1
