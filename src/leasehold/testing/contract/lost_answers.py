"""Lost answers and races.

A call that was carried out, and whose answer was lost, may be repeated. And of many racers for a
key, one is the owner at any time.

Racers are real processes where another process can open the store, else tasks. Every racer records
its calls, their times and the answers; one order of single steps must explain the record
(``leasehold.testing.linearizability``).
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import (
    CheckpointWrite,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Note,
    Ownership,
    Position,
)
from leasehold.ports import Store
from leasehold.testing.contract.store_case import LONG, ContractBase, StoreCase
from leasehold.testing.faults import CHANGING, READING, FaultyStore, Lost
from leasehold.testing.linearizability import CallOutcome, KeyCall, Operation, violation
from leasehold.testing.worker import Race, Racer, from_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leasehold.testing.contract.harness import Harness

_RACERS = 3
_LEASE_S = 600.0  # outlasts every race


class RaceContract(ContractBase):
    """One key, several holders that want it."""

    @pytest.mark.spec("L1", "P4")
    async def test_every_epoch_has_one_winner(self, scene: StoreCase) -> None:
        """And the whole record can be explained."""
        history = await self._race(scene, losses=0.0, rounds=20)
        _assert_one_winner_each(history, rounds=20)
        assert violation(history) is None

    @pytest.mark.spec("L1", "P4")
    async def test_every_epoch_has_one_winner_though_answers_get_lost(
        self, scene: StoreCase
    ) -> None:
        """What is unknown may have happened, then or later; nothing else may."""
        history = await self._race(scene, losses=0.2, rounds=15)
        assert any(each.outcome is CallOutcome.UNKNOWN for each in history)
        _assert_one_winner_each(history, rounds=15)
        assert violation(history) is None

    @pytest.mark.spec("L1")
    async def test_fuzz_counter(self, scene: StoreCase, tmp_path: Path) -> None:
        """ShedLock ``FuzzTester``: a counter that nothing protects but the lease is exact."""
        (key,) = await scene.declared("counter")
        counter = tmp_path / "counter"
        counter.write_text("0", encoding="ascii")
        races = _races(scene, key, rounds=8, counter=str(counter))
        await _run(scene.harness, scene, races)
        assert counter.read_text(encoding="ascii") == str(8 * _RACERS)

    async def _race(self, store_case: StoreCase, *, losses: float, rounds: int) -> list[Operation]:
        (key,) = await store_case.declared("prize")
        races = _races(store_case, key, rounds=rounds, losses=losses)
        return await _run(store_case.harness, store_case, races)


def _races(
    store_case: StoreCase, key: str, *, rounds: int, losses: float = 0.0, counter: str = ""
) -> list[Race]:
    return [
        Race(
            key=key,
            holder=f"racer {n} {store_case.suffix}",
            rounds=rounds,
            seed=n,
            losses=losses,
            counter=counter,
            lease_s=min(_LEASE_S, store_case.harness.longest_s),
        )
        for n in range(_RACERS)
    ]


def _assert_one_winner_each(history: Sequence[Operation], *, rounds: int) -> None:
    winners: dict[int, set[str]] = {}
    perhaps = set()
    for each in history:
        if each.call in {KeyCall.CLAIM, KeyCall.STEAL}:
            if each.outcome is CallOutcome.DONE:
                winners.setdefault(each.won, set()).add(each.holder)
            elif each.outcome is CallOutcome.UNKNOWN:
                # It may have won, and lost the key to a steal before it could ask again.
                perhaps.add(each.epoch + 1)
    assert {epoch: who for epoch, who in winners.items() if len(who) > 1} == {}
    assert set(range(1, rounds + 1)) - set(winners) - perhaps == set()


async def _run(harness: Harness, store_case: StoreCase, races: Sequence[Race]) -> list[Operation]:
    if harness.url is not None:
        return await _by_processes(harness.url, harness.opener, races)
    return await _by_tasks(store_case, races)


async def _by_tasks(store_case: StoreCase, races: Sequence[Race]) -> list[Operation]:
    # The clock may not move here: the order of events is the time.
    moments = count()
    racers = [
        Racer(race, store_case.store, now_s=lambda: float(next(moments)), pause=_give_way)
        for race in races
    ]
    async with anyio.create_task_group() as tasks:
        for racer in racers:
            tasks.start_soon(racer.run)
    return [each for racer in racers for each in racer.history]


async def _give_way(_seconds: float) -> None:
    await anyio.lowlevel.checkpoint()


async def _by_processes(url: str, opener: str, races: Sequence[Race]) -> list[Operation]:
    """Start all processes, wait until all are ready, then let them start together."""
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


@dataclass(frozen=True, slots=True)
class _LostAnswerCase:
    """Two members; ``a`` owns ``mine``; ``kept`` is reserved for it; ``free`` is free."""

    store_case: StoreCase
    a: Lease
    b: Lease
    mine: Ownership
    kept: Ownership
    free: str


_TOKEN_OF_C = "token of c"  # noqa: S105
_Step = Callable[[Store, _LostAnswerCase], Awaitable[object]]


async def _declare(store: Store, case: _LostAnswerCase) -> object:
    return await store.declare([case.store_case.key("new"), case.free])


async def _forget(store: Store, case: _LostAnswerCase) -> object:
    return await store.forget([case.free, case.mine.key])


async def _grant(store: Store, case: _LostAnswerCase) -> object:
    return await store.grant(
        holder=f"c-{case.store_case.suffix}",
        token=_TOKEN_OF_C,
        group=case.store_case.group,
        duration=case.store_case.lasting(LONG),
        info=MemberInfo(host="c"),
    )


async def _renew(store: Store, case: _LostAnswerCase) -> object:
    await store.renew(case.a, info=MemberInfo(host="elsewhere", draining=True))
    return None


async def _revoke(store: Store, case: _LostAnswerCase) -> object:
    await store.revoke(case.a)
    return None


async def _revoke_lapsed(store: Store, case: _LostAnswerCase) -> object:
    await store.revoke(case.a, lapsed=True)
    return None


async def _claim(store: Store, case: _LostAnswerCase) -> object:
    return await store.claim(case.b, [KeyClaim(key=case.free, seen_epoch=0)])


async def _claim_kept(store: Store, case: _LostAnswerCase) -> object:
    return await store.claim(case.a, [KeyClaim(key=case.kept.key, seen_epoch=1)])


async def _steal(store: Store, case: _LostAnswerCase) -> object:
    return await store.claim(case.b, [KeyClaim(key=case.mine.key, seen_epoch=1)], force=True)


async def _ask(store: Store, case: _LostAnswerCase) -> object:
    return await store.ask(case.b, KeyClaim(key=case.mine.key, seen_epoch=1))


async def _hand_over(store: Store, case: _LostAnswerCase) -> object:
    passed = [HandOver(ownership=case.mine, to=case.b.holder)]
    return await store.hand_over(passed, limit=case.store_case.units(LONG))


async def _pass_on(store: Store, case: _LostAnswerCase) -> object:
    passed = [HandOver(ownership=case.kept, to=case.b.holder)]
    return await store.hand_over(passed, limit=case.store_case.units(LONG))


async def _release(store: Store, case: _LostAnswerCase) -> object:
    return await store.release([case.mine])


async def _break_now(store: Store, case: _LostAnswerCase) -> object:
    await store.break_(case.mine.key, epoch=1, after=timedelta(0))
    return None


async def _break_later(store: Store, case: _LostAnswerCase) -> object:
    broken = await store.break_(case.mine.key, epoch=1, after=case.store_case.units(10))
    return None if broken is None else replace(broken, breaking_s=None, version=0)


async def _checkpoint(store: Store, case: _LostAnswerCase) -> object:
    return await store.checkpoint(
        [CheckpointWrite(ownership=case.mine, position=Position(sequence_number=3, offset="here"))]
    )


async def _claim_with_note(store: Store, case: _LostAnswerCase) -> object:
    return await store.claim(case.a, [KeyClaim(key=case.free, seen_epoch=0, note="begun")])


async def _hand_over_with_note(store: Store, case: _LostAnswerCase) -> object:
    passed = [HandOver(ownership=case.mine, to=case.b.holder, note="passed")]
    return await store.hand_over(passed, limit=case.store_case.units(LONG))


async def _release_with_note(store: Store, case: _LostAnswerCase) -> object:
    return await store.release([case.mine], notes={case.mine.key: "done"})


async def _annotate(store: Store, case: _LostAnswerCase) -> object:
    return await store.annotate([Note(ownership=case.mine, text="half done")])


async def _suggest(store: Store, case: _LostAnswerCase) -> object:
    return await store.request_hand_over(case.mine.key, epoch=1, to=case.b.holder)


async def _dismiss(store: Store, case: _LostAnswerCase) -> object:
    return await store.request_leave(case.a.holder)


async def _reset(store: Store, case: _LostAnswerCase) -> object:
    return await store.reset({case.free: Position(sequence_number=3, offset="there")})


STEPS: MappingProxyType[str, _Step] = MappingProxyType(
    {
        "declare": _declare,
        "forget": _forget,
        "grant": _grant,
        "renew": _renew,
        "revoke": _revoke,
        "revoke as lapsed": _revoke_lapsed,
        "claim": _claim,
        "claim what is kept": _claim_kept,
        "claim by force": _steal,
        "ask": _ask,
        "hand_over": _hand_over,
        "hand_over what is kept": _pass_on,
        "release": _release,
        "break_": _break_now,
        "break_ later": _break_later,
        "checkpoint": _checkpoint,
        "annotate": _annotate,
        "claim with a note": _claim_with_note,
        "hand_over with a note": _hand_over_with_note,
        "release with a note": _release_with_note,
        "request_hand_over": _suggest,
        "request_leave": _dismiss,
        "reset": _reset,
    }
)
_COUNTING = {"declare", "forget"}  # their answer is how much was new: nothing, the second time


class LostAnswerContract(ContractBase):
    """Unknown is neither done nor failed."""

    def test_every_method_is_covered(self) -> None:
        """A new method of the protocol cannot be overlooked."""
        methods = {
            name
            for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)
            if not name.startswith("_")
        }
        assert {*CHANGING, *READING, "close"} == methods
        assert {name.split()[0] for name in STEPS} == set(CHANGING)

    @pytest.mark.parametrize("name", STEPS)
    async def test_calling_again_ends_as_one_call_does(self, scene: StoreCase, name: str) -> None:
        """Two stages alike: one call with an answer there, a lost answer and one more here."""
        step, there, here = (
            STEPS[name],
            await _make_case(scene.twin()),
            await _make_case(scene.twin()),
        )
        answer = await step(scene.store, there)
        faulty = FaultyStore(scene.store, lambda _: Lost.ANSWER).as_store
        with pytest.raises(StoreUnavailable):
            await step(faulty, here)
        again = await step(scene.store, here)
        assert await _plain(here) == await _plain(there)
        if name not in _COUNTING:
            assert _anonymous(again, here) == _anonymous(answer, there)

    @pytest.mark.parametrize("name", STEPS)
    async def test_a_lost_request_leaves_no_trace(self, scene: StoreCase, name: str) -> None:
        """The other way in which an answer does not come; after it, one call does all."""
        step, there, here = (
            STEPS[name],
            await _make_case(scene.twin()),
            await _make_case(scene.twin()),
        )
        faulty = FaultyStore(scene.store, lambda _: Lost.REQUEST).as_store
        before = await _plain(here)
        with pytest.raises(StoreUnavailable):
            await step(faulty, here)
        assert await _plain(here) == before
        assert _anonymous(await step(scene.store, here), here) == _anonymous(
            await step(scene.store, there), there
        )
        assert await _plain(here) == await _plain(there)

    @pytest.mark.parametrize("name", [name for name in STEPS if name not in _COUNTING])
    async def test_a_call_that_arrives_late_does_no_harm(self, scene: StoreCase, name: str) -> None:
        """It was taken for lost and made again, and all went on; now the first one arrives.

        Keys are owned by others by now, under newer epochs, and the caller's lease is revoked.
        """
        step, case = STEPS[name], await _make_case(scene.twin())
        await step(scene.store, case)
        await _go_on(case)
        before = await _plain(case)
        with suppress(LeaseLost):
            await step(scene.store, case)
        fenced = await scene.store.fenced_writes(case.store_case.group)
        assert fenced == (1 if name in {"checkpoint", "annotate"} else 0)
        assert (await _plain(case))[:-1] == before[:-1]


async def _make_case(store_case: StoreCase) -> _LostAnswerCase:
    mine, kept, free = await store_case.declared("mine", "kept", "free")
    a, b = await store_case.member("a"), await store_case.member("b")
    giver = await store_case.member("giver")
    given = await store_case.own(giver, kept)
    await store_case.hand_over(given, a)
    for_a = Ownership(key=kept, epoch=given.epoch, holder=a.holder, token=a.token)
    return _LostAnswerCase(store_case, a, b, await store_case.own(a, mine), for_a, free)


async def _go_on(case: _LostAnswerCase) -> None:
    """Revoke all that the steps use, and let another holder have everything."""
    store_case = case.store_case
    c = replace(case.a, holder=f"c-{store_case.suffix}", token=_TOKEN_OF_C)
    for lease in (case.a, case.b, c):
        await store_case.store.revoke(lease)
    third = await store_case.member("third")
    keys = (case.mine.key, case.kept.key, case.free)
    assert len(await store_case.claim(third, *keys)) == len(keys)


async def _plain(case: _LostAnswerCase) -> list[str]:
    return (await case.store_case.snapshot()).plain(case.store_case.suffix)


def _anonymous(answer: object, case: _LostAnswerCase) -> str:
    return repr(answer).replace(case.store_case.suffix, "")
