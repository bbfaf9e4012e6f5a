"""Unusual names that must work, and bad input that must be refused with a clear message."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from leasehold.core.lease_timing import MAX_LEASE_S, MIN_LEASE_S
from leasehold.errors import InvalidDuration, InvalidName
from leasehold.model import CheckpointWrite, HandOver, KeyClaim, MemberInfo, Position, State
from leasehold.names import LONGEST_KEY, LONGEST_NAME, group_of, last_part, partition_key
from leasehold.testing.contract.store_case import ContractBase, StoreCase, assert_unchanged

# Of four bytes each in UTF-8, and in no order that could be compressed.
WIDE = "".join(chr(0x20000 + Random(7 + n).randrange(0xA000)) for n in range(LONGEST_KEY))

ODD_PARTS = (
    "with space",
    "a/b",
    "a%2Fb",
    "100%",
    "..",
    "été",
    "日本語",
    "🚀",
    "'; DROP TABLE x; --",
    '"quoted"',
    "back\\slash",
    "_%",
    "UPPER",
    "upper",
    "A" * LONGEST_NAME,
)
BAD_KEYS = (
    "",
    "noslash",
    "/",
    "a/",
    "/a",
    "a//b",
    "a/b\x00",
    "a/b\n",
    "a/\u200b",
    "a/\ud800",
    "a/" + "x" * (LONGEST_KEY - 1),
)
BAD_NAMES = ("", " x", "x ", "x\x00", "x\ny", "x\u200by", "\ud800", "x" * (LONGEST_NAME + 1))
BAD_LEASES = (
    timedelta(0),
    timedelta(seconds=-1),
    timedelta(seconds=MIN_LEASE_S / 2),
    timedelta(seconds=MAX_LEASE_S + 1),
    timedelta.max,
    timedelta.min,
)
BAD_LIMITS = (timedelta(microseconds=-1), timedelta(seconds=MAX_LEASE_S + 1), timedelta.max)


class OddNameContract(ContractBase):
    """Whatever the names say, they are the user's."""

    async def test_odd_names_live_a_whole_life(self, scene: StoreCase) -> None:
        """Declare, claim, write, break, history: each key stays itself among the others."""
        keys = {part: partition_key(f"s{scene.suffix}", "g", part) for part in ODD_PARTS}
        group = group_of(next(iter(keys.values())))
        assert await scene.store.declare(list(keys.values())) == len(ODD_PARTS)
        lease = await scene.member("a", group=group)
        wanted = [KeyClaim(key=key, seen_epoch=0) for key in keys.values()]
        taken = {each.key: each for each in await scene.store.claim(lease, wanted)}
        assert set(taken) == set(keys.values())
        for number, key in enumerate(keys.values()):
            assert await scene.write_checkpoint(taken[key], number) is None
        stored = await scene.store.checkpoints(group)
        for number, (part, key) in enumerate(keys.items()):
            assert last_part(key) == part
            assert stored[key].position.sequence_number == number
            assert [term.holder for term in await scene.store.history(key)] == [lease.holder]
        first, *others = taken.values()
        await scene.store.break_(first.key, epoch=1, after=timedelta(0))
        assert set(await scene.store.release(others)) == {each.key for each in others}
        states = {each.state for each in (await scene.store.resources(group)).values()}
        assert states <= {State.AVAILABLE, State.BROKEN}

    async def test_odd_groups_do_not_mix(self, scene: StoreCase) -> None:
        """A part with a slash, a percent sign or a wildcard is not the group it looks like."""
        base = f"s{scene.suffix}"
        names = [(f"{base}/x", "y"), (base, "x/y"), (f"{base}%2Fx", "y"), (base, "%"), (base, "_")]
        keys = [partition_key(stream, group, "0") for stream, group in names]
        assert await scene.store.declare(keys) == len(set(keys)) == len(names)
        for key in keys:
            assert list(await scene.store.resources(group_of(key))) == [key]

    @pytest.mark.parametrize("letters", ["x" * LONGEST_KEY, WIDE], ids=["narrow", "wide"])
    async def test_the_longest_key_works(self, scene: StoreCase, letters: str) -> None:
        """In all characters that can be printed."""
        key = f"{scene.group}/{letters}"[:LONGEST_KEY]
        assert await scene.store.declare([key]) == 1
        ownership = await scene.own(await scene.member("a"), key)
        assert await scene.write_checkpoint(ownership, 1) is None
        assert list(await scene.store.release([ownership])) == [key]
        assert len(await scene.store.history(key)) == 1

    async def test_the_longest_names_work(self, scene: StoreCase) -> None:
        """Of holders, tokens and groups."""
        holder = (scene.suffix + WIDE)[:LONGEST_NAME]
        group = f"{scene.group}/{WIDE}"[: LONGEST_KEY - 2]
        lease = await scene.store.grant(
            holder=holder,
            token=WIDE[:LONGEST_NAME],
            group=group,
            duration=scene.lasting(10),
            info=MemberInfo(host=WIDE, loads={WIDE: 0.1}),
        )
        record = (await scene.store.members(group))[holder]
        assert record.info == MemberInfo(host=WIDE, loads={WIDE: 0.1})
        assert await scene.store.declare([f"{group}/k"]) == 1
        assert (await scene.own(lease, f"{group}/k")).holder == holder


class BadInputContract(ContractBase):
    """A mistake is said, and nothing has happened."""

    @pytest.mark.parametrize("bad", BAD_KEYS, ids=ascii)
    async def test_bad_keys(self, scene: StoreCase, bad: str) -> None:
        """Then none of the batch is declared."""
        good = scene.key("good")
        for keys in ([good, bad], [bad]):
            with pytest.raises(InvalidName):
                await scene.store.declare(keys)
        assert await scene.store.resources(scene.group) == {}

    @pytest.mark.parametrize("bad", BAD_NAMES, ids=ascii)
    async def test_bad_names_of_holders_and_tokens(self, scene: StoreCase, bad: str) -> None:
        """The message says which of the two is meant."""
        good = f"good-{scene.suffix}"
        for what, holder, token in (("holder", bad, good), ("token", good, bad)):
            with pytest.raises(InvalidName, match=what):
                await scene.store.grant(
                    holder=holder,
                    token=token,
                    group=scene.group,
                    duration=scene.lasting(10),
                    info=MemberInfo(),
                )
        assert await scene.store.members(scene.group) == {}

    @pytest.mark.parametrize("bad", BAD_KEYS[2:], ids=ascii)
    async def test_bad_groups(self, scene: StoreCase, bad: str) -> None:
        """Empty is not a mistake: a holder of no group. Nor is one part alone: all jobs."""
        with pytest.raises(InvalidName):
            await scene.member("a", group=bad)

    @pytest.mark.spec("L6")
    @pytest.mark.parametrize("bad", BAD_LEASES, ids=str)
    async def test_bad_durations_of_leases(self, scene: StoreCase, bad: timedelta) -> None:
        """The message names the range."""
        with pytest.raises(InvalidDuration) as caught:
            await scene.store.grant(
                holder=f"a-{scene.suffix}",
                token="token",  # noqa: S106
                group=scene.group,
                duration=bad,
                info=MemberInfo(),
            )
        assert f"{scene.harness.shortest_s:g}" in str(caught.value)
        assert f"{scene.harness.longest_s:g}" in str(caught.value)
        assert await scene.store.members(scene.group) == {}

    @pytest.mark.spec("L6")
    @pytest.mark.parametrize("bad", BAD_LIMITS, ids=str)
    async def test_bad_limits(self, scene: StoreCase, bad: timedelta) -> None:
        """Of hand-overs and breaks."""
        _, ownership = await scene.owned()
        receiver = await scene.member("receiver")
        before = await scene.snapshot()
        with pytest.raises(InvalidDuration):
            await scene.store.break_(ownership.key, epoch=1, after=bad)
        passed = [HandOver(ownership=ownership, to=receiver.holder)]
        with pytest.raises(InvalidDuration):
            await scene.store.hand_over(passed, limit=bad)
        assert_unchanged(before, await scene.snapshot())

    async def test_unknown_keys_are_simply_not_there(self, scene: StoreCase) -> None:
        """In batches and reads they are an answer: they may have been forgotten."""
        lease, ownership = await scene.owned()
        unknown = scene.key("unknown")
        wanted = KeyClaim(key=unknown, seen_epoch=0)
        assert list(await scene.store.claim(lease, [wanted])) == []
        assert not await scene.store.ask(lease, wanted)
        assert await scene.store.forget([unknown]) == 0
        assert list(await scene.store.history(unknown)) == []
        mark = CheckpointWrite(ownership=ownership, position=Position(sequence_number=1))
        assert not await scene.store.checkpoint([mark])
        empty = f"{scene.group}/nobody/was/here"
        for answer in (
            await scene.store.resources(empty),
            await scene.store.members(empty),
            await scene.store.checkpoints(empty),
        ):
            assert answer == {}
        assert await scene.store.fenced_writes(empty) == 0
