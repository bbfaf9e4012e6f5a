"""A consumer group of child processes at a hub, with their records in the blobs of an Azurite.

``member.js`` and ``member.py`` are members with the stock clients of npm and of Python. Both tell
which partition they have ``opened`` and ``closed``, and of each ``partition`` the sequence numbers
that they have ``seen``, and the one that they have ``marked``: a checkpoint was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

from tests.support.azurite import Azurite, shared_azurite
from tests.support.hub import RunningHub, running_hub, until
from tests.support.hub_js.child import TIMEOUT_S, Child

PARTITIONS = 4
EACH = 5  # events for each partition, each time


@dataclass(kw_only=True)
class Group:
    """All who ever were members, and how far each partition was filled."""

    hub: RunningHub
    azurite: Azurite
    container: str
    make: Callable[[], AbstractContextManager[Child]]
    interval_s: float = 0.2
    # A slow member must never seem dead: who was killed is made to.
    expiry_s: float = 600.0
    members: list[Child] = field(default_factory=list)
    sent: int = 0  # events, to each partition

    @property
    def partitions(self) -> set[str]:
        return {str(number) for number in range(PARTITIONS)}

    @contextmanager
    def member(self, *, strategy: str = "greedy") -> Iterator[Child]:
        with self.make() as made:
            made.do(
                "join",
                url=self.hub.url(),
                storage=self.azurite.connection_string,
                container=self.container,
                interval_s=self.interval_s,
                expiry_s=self.expiry_s,
                strategy=strategy,
            )
            self.members.append(made)
            yield made

    def shared(self, *members: Child) -> None:
        """Wait until these have equal shares of all partitions, and no partition is with two."""

        def even() -> bool:
            shares = [owned(each) for each in members]
            return set().union(*shares) == self.partitions and all(
                len(share) == PARTITIONS // len(members) for share in shares
            )

        self.until(even)

    def send(self) -> None:
        """Store events in each partition, and wait until each was given to a member."""
        self.store()
        self.until(lambda: all(self.seen(each) for each in self.partitions))

    def store(self) -> None:
        """The same without waiting."""
        for partition in range(PARTITIONS):
            self.hub.store(*[b"x"] * EACH, partition=partition)
        self.sent += EACH

    def seen(self, partition: str, *others: int) -> bool:
        """Whether each event was given to a member, or is one of the others."""
        given = {number for each in self.members for number in seen(each, partition)}
        return given.union(others) == set(range(self.sent))

    def mark(self, partition: str) -> int:
        """The last checkpoint that anybody has told of; -1 if there is none."""
        marks = [n for each in self.members for n in each.values("marked", partition=partition)]
        return max(marks, default=-1)

    def marked(self, partitions: set[str]) -> None:
        """Wait until all that was sent to these is behind a checkpoint."""
        self.until(lambda: all(self.mark(each) == self.sent - 1 for each in partitions))

    def goes_on(self, member: Child, marks: dict[str, int], *, since: int) -> None:
        """Wait until it has all: since then it was given what is after the marks, and no more."""
        self.until(lambda: owned(member) == self.partitions)
        for partition, mark in marks.items():
            given = partial(seen, member, partition, since=since)
            self.until(partial(_has, given, self.sent - 1))
            assert sorted(set(given())) == list(range(mark + 1, self.sent))

    def make_old(self, partitions: Iterable[str]) -> None:
        """Let the records that say whose these are look as if nobody had renewed them for long."""
        ends = [f"/ownership/{each}" for each in partitions]
        self.azurite.make_old(self.container, ends, age=2 * timedelta(seconds=self.expiry_s))

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds; fail with what all have told."""
        try:
            until(condition, timeout_s=TIMEOUT_S)
        except AssertionError as error:
            for each in self.members:
                error.add_note(f"{each.process.args!r}: {each.told[-30:]}")
            raise


def owned(member: Child) -> set[str]:
    """The partitions that it works on."""
    found: set[str] = set()
    for line in list(member.told):
        found |= {line["opened"]} if "opened" in line else set()
        found -= {line["closed"]} if "closed" in line else set()
    return found


def _has(given: Callable[[], list[int]], number: int) -> bool:
    return number in given()


def seen(member: Child, partition: str, *, since: int = 0) -> list[int]:
    """What it was given of a partition, from a line on."""
    lines = [line for line in member.told[since:] if line.get("partition") == partition]
    return list(chain.from_iterable(line.get("seen", []) for line in lines))


@contextmanager
def group(directory: Path, make: Callable[[], AbstractContextManager[Child]]) -> Iterator[Group]:
    """Nobody is in it yet."""
    azurite = shared_azurite()
    with running_hub(directory, partitions=PARTITIONS) as hub:
        container = azurite.new_container("group")
        yield Group(hub=hub, azurite=azurite, container=container, make=make)


def share_and_part(them: Group, *, ends: Sequence[Literal["left", "killed"]]) -> None:
    """One stays; others share with it, each to its end: it goes on for them, and none is missed."""
    with them.member(strategy="balanced") as stays:
        them.shared(stays)  # alone, since these clients make new records without a condition
        for end in ends:
            with them.member() as goes:
                them.shared(stays, goes)
                them.send()
                them.marked(them.partitions)
                goes.do("hold")
                goes.wait(holds=True)
                them.send()  # these are not behind a checkpoint when it goes
                them.marked(owned(stays))
                marks, since = {each: them.mark(each) for each in owned(goes)}, len(stays.told)
                if end == "killed":
                    goes.process.kill()
                    goes.process.wait()
                    them.make_old(marks)
                else:
                    goes.do("leave")
                    goes.wait(left=True)
                them.goes_on(stays, marks, since=since)
                assert set(marks.values()) == {them.sent - EACH - 1}
        them.send()
        stays.do("leave")
        stays.wait(left=True)
