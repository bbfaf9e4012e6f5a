"""``leasehold log rm`` says whose checkpoints it leaves behind, and how to remove them."""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from tests.support.command import CommandLine

from leasehold import open_store, partition_group, partition_key
from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Position


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    store: str,
    tmp_path: Path,
) -> CommandLine:
    """With a stream that has two partitions."""
    made = CommandLine(monkeypatch, capfdbinary, store)
    words = ("orders", "--partitions", "2", "--volume", f"{tmp_path}/one")
    assert made("log", "create", *words).code == 0
    return made


async def checkpointed(store: str, stream: str, group: str, partitions: int) -> None:
    keys = [partition_key(stream, group, str(number)) for number in range(partitions)]
    async with open_store(store) as opened:
        await opened.declare(keys)
        lease = await opened.grant(
            holder=f"member of {group}",
            token="t" * 32,
            group=partition_group(stream, group),
            duration=timedelta(minutes=10),
            info=MemberInfo(),
        )
        owned = await opened.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in keys])
        position = Position(sequence_number=3)
        marks = [CheckpointWrite(ownership=each, position=position) for each in owned]
        assert await opened.checkpoint(marks) == {}
        await opened.revoke(lease)


def test_delete_names_the_groups_with_checkpoints_and_the_command_that_removes_them(
    leasehold: CommandLine, store: str
) -> None:
    for stream, group, partitions in (
        ("orders", "billing", 2),
        ("orders", "a b", 1),
        ("orders2", "other", 1),
    ):
        anyio.run(checkpointed, store, stream, group, partitions)
    plan = leasehold("log", "rm", "orders")
    done = leasehold("log", "rm", "orders", "--execute")
    assert (plan.code, done.code) == (0, 0)
    assert plan.err.splitlines()[1:] == done.err.splitlines()[1:]
    _, why, first, second = done.err.splitlines()
    assert "In a recreated stream of this name they stop with PositionLost" in why
    assert first.startswith("a b (1 checkpoint): leasehold checkpoints reset orders 'a b' ")
    assert second.startswith("billing (2 checkpoints): leasehold checkpoints reset orders billing ")
    for line in (first, second):  # as it is said, and with the stream gone
        _, *words = shlex.split(line.partition("): ")[2])
        said = leasehold(*words)
        assert said.code == 0, said.err
    for group in ("a b", "billing"):
        rows = leasehold("checkpoints", "ls", "orders", group, "-ojson").json
        assert {row["checkpoint"] for row in rows} == {None}


def test_delete_says_nothing_of_checkpoints_where_there_are_none(leasehold: CommandLine) -> None:
    assert "checkpoint" not in leasehold("log", "rm", "orders", "--execute").err
