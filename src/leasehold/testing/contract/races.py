"""Races: many at once, and at every moment one owner.

Real processes where the store can be opened by another process, else tasks. Every racer records
what it asked, when, and what the answer was; the record has to be explained by one order of
single steps (``leasehold.testing.linearizability``).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from leasehold.testing.contract.scene import ContractBase, Scene
from leasehold.testing.linearizability import Call, Operation, Outcome, violation
from leasehold.testing.worker import Race, Racer, from_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leasehold.testing.contract.harness import Harness

_RACERS = 3
_LEASE_S = 600.0  # outlasts every race


class RaceContract(ContractBase):
    """One key, many who want it."""

    @pytest.mark.spec("L1", "P4")
    async def test_every_epoch_has_one_winner(self, scene: Scene) -> None:
        """And the whole record can be explained."""
        history = await self._race(scene, losses=0.0, rounds=20)
        _assert_one_winner_each(history, rounds=20)
        assert violation(history) is None

    @pytest.mark.spec("L1", "P4")
    async def test_every_epoch_has_one_winner_though_answers_get_lost(self, scene: Scene) -> None:
        """What is unknown may have happened, then or later; nothing else may."""
        history = await self._race(scene, losses=0.2, rounds=15)
        assert any(each.outcome is Outcome.UNKNOWN for each in history)
        _assert_one_winner_each(history, rounds=15)
        assert violation(history) is None

    @pytest.mark.spec("L1")
    async def test_fuzz_counter(self, scene: Scene, tmp_path: Path) -> None:
        """ShedLock ``FuzzTester``: a counter that nothing protects but the lease is exact."""
        (key,) = await scene.declared("counter")
        counter = tmp_path / "counter"
        counter.write_text("0", encoding="ascii")
        races = _races(scene, key, rounds=8, counter=str(counter))
        await _run(scene.harness, scene, races)
        assert counter.read_text(encoding="ascii") == str(8 * _RACERS)

    async def _race(self, scene: Scene, *, losses: float, rounds: int) -> list[Operation]:
        (key,) = await scene.declared("prize")
        races = _races(scene, key, rounds=rounds, losses=losses)
        return await _run(scene.harness, scene, races)


def _races(
    scene: Scene, key: str, *, rounds: int, losses: float = 0.0, counter: str = ""
) -> list[Race]:
    return [
        Race(
            key=key,
            holder=f"racer {n} {scene.suffix}",
            rounds=rounds,
            seed=n,
            losses=losses,
            counter=counter,
            lease_s=min(_LEASE_S, scene.harness.longest_s),
        )
        for n in range(_RACERS)
    ]


def _assert_one_winner_each(history: Sequence[Operation], *, rounds: int) -> None:
    winners: dict[int, set[str]] = {}
    perhaps = set()
    for each in history:
        if each.call in {Call.CLAIM, Call.STEAL}:
            if each.outcome is Outcome.DONE:
                winners.setdefault(each.won, set()).add(each.holder)
            elif each.outcome is Outcome.UNKNOWN:
                # It may have won and have been robbed before it could ask again.
                perhaps.add(each.epoch + 1)
    assert {epoch: who for epoch, who in winners.items() if len(who) > 1} == {}
    assert set(range(1, rounds + 1)) - set(winners) - perhaps == set()


async def _run(harness: Harness, scene: Scene, races: Sequence[Race]) -> list[Operation]:
    if harness.url is not None:
        return await _by_processes(harness.url, harness.opener, races)
    return await _by_tasks(scene, races)


async def _by_tasks(scene: Scene, races: Sequence[Race]) -> list[Operation]:
    # Time may stand still here: the order of events is the time.
    moments = count()
    racers = [
        Racer(race, scene.store, now_s=lambda: float(next(moments)), pause=_give_way)
        for race in races
    ]
    async with anyio.create_task_group() as tasks:
        for racer in racers:
            tasks.start_soon(racer.run)
    return [each for racer in racers for each in racer.history]


async def _give_way(_seconds: float) -> None:
    await anyio.lowlevel.checkpoint()


async def _by_processes(url: str, opener: str, races: Sequence[Race]) -> list[Operation]:
    """Start all, wait until all are ready, then let them go at once."""
    ready = [anyio.Event() for _ in races]
    lines: list[str] = []

    async def follow(race: Race, is_ready: anyio.Event) -> None:
        command = [sys.executable, "-m", "leasehold.testing.worker"]
        command += [json.dumps(asdict(race)), opener, url]
        async with await anyio.open_process(command, stderr=None) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            text = b""
            async for chunk in process.stdout:
                text += chunk
                if not is_ready.is_set() and b"\n" in text:
                    is_ready.set()
                    for each in ready:
                        await each.wait()
                    await process.stdin.send(b"go\n")
            assert await process.wait() == 0
        first, *rest = text.decode().splitlines()
        assert first == "ready"
        lines.extend(rest)

    async with anyio.create_task_group() as tasks:
        for race, is_ready in zip(races, ready, strict=True):
            tasks.start_soon(follow, race, is_ready)
    return [from_json(line) for line in lines]
