"""A group that lives at random, from one seed: members come, claim, give, rob, break and go."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.errors import LeaseLost, UnknownResource
from leasehold.model import MemberInfo, Ownership, Position, Wanted

if TYPE_CHECKING:
    from random import Random

    from leasehold.model import Lease, Resource
    from leasehold.testing.contract.scene import Scene

_KEYS = 5
_MEMBERS = 4
# How often each step is taken, beside the others.
_WEIGHTS = {
    "join": 3,
    "leave": 1,
    "renew": 3,
    "claim": 6,
    "steal": 2,
    "release": 3,
    "hand_over": 4,
    "pass_on": 3,
    "ask": 2,
    "break_": 3,
    "declare": 1,
    "forget": 1,
    "checkpoint": 2,
    "annotate": 2,
    "suggest": 2,
    "dismiss": 1,
    "reset": 1,
    "wait": 3,
}


@dataclass(slots=True)
class Life:
    """Steps are taken blindly: many are refused, and refusals are part of life."""

    scene: Scene
    rng: Random
    keys: list[str]
    leases: list[Lease] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)

    @classmethod
    async def begun(cls, scene: Scene, rng: Random) -> Life:
        """Some keys and a first member."""
        keys = await scene.declared(*map(str, range(_KEYS)))
        life = cls(scene, rng, keys)
        await life._join()
        return life

    async def step(self) -> None:
        """One step, drawn from all."""
        name = self.rng.choices([*_WEIGHTS], weights=[*_WEIGHTS.values()])[0]
        with suppress(LeaseLost, UnknownResource):
            await getattr(self, f"_{name}")()

    async def _join(self) -> None:
        units = self.rng.choice([1.0, 2.0, 50.0])
        self.leases = self.leases[-_MEMBERS + 1 :]
        self.leases.append(await self.scene.member("m", units=units))

    async def _leave(self) -> None:
        await self.scene.store.revoke(self._somebody())

    async def _renew(self) -> None:
        info = MemberInfo(host="m", draining=True) if self.rng.random() < 0.3 else None
        await self.scene.store.renew(self._somebody(), info=info)

    async def _claim(self, *, force: bool = False) -> None:
        wanted = [
            Wanted(key=each.key, seen_epoch=each.epoch, note=self.rng.choice(["", "begun"]))
            for each in await self._some_keys()
        ]
        taken = await self.scene.store.claim(self._somebody(), wanted, force=force)
        self.ownerships = [*self.ownerships, *taken][-2 * _KEYS :]

    async def _steal(self) -> None:
        await self._claim(force=True)

    async def _release(self) -> None:
        ended = self._some_ownerships()
        notes = {each.key: "done" for each in ended if self.rng.random() < 0.5}
        await self.scene.store.release(ended, notes=notes)

    async def _hand_over(self) -> None:
        units = self.rng.choice([0.0, 1.0, 50.0])
        for ownership in self._some_ownerships():
            await self.scene.hand_over(ownership, self._somebody(), units=units)

    async def _pass_on(self) -> None:
        tokens = {lease.holder: lease.token for lease in self.leases}
        for each in await self._some_keys(_KEYS):
            if each.handed_to in tokens:
                holder, token = each.handed_to, tokens[each.handed_to]
                kept = Ownership(key=each.key, epoch=each.epoch, holder=holder, token=token)
                await self.scene.hand_over(kept, self._somebody(), units=self.rng.choice([1, 50]))

    async def _ask(self) -> None:
        for each in await self._some_keys():
            wanted = Wanted(key=each.key, seen_epoch=each.epoch)
            await self.scene.store.ask(self._somebody(), wanted)

    async def _break_(self) -> None:
        after = self.scene.units(self.rng.choice([0.0, 1.0, 50.0]))
        for each in await self._some_keys():
            await self.scene.store.break_(each.key, epoch=each.epoch, after=after)

    async def _declare(self) -> None:
        await self.scene.store.declare(self.keys)

    async def _forget(self) -> None:
        await self.scene.store.forget([self.rng.choice(self.keys)])

    async def _checkpoint(self) -> None:
        for ownership in self._some_ownerships():
            await self.scene.mark(ownership, self.rng.randrange(10))

    async def _annotate(self) -> None:
        for ownership in self._some_ownerships():
            await self.scene.annotate(ownership, f"at {self.rng.randrange(10)}")

    async def _suggest(self) -> None:
        for each in await self._some_keys():
            to = self._somebody().holder
            await self.scene.store.suggest(each.key, epoch=each.epoch, to=to)

    async def _dismiss(self) -> None:
        await self.scene.store.dismiss(self._somebody().holder)

    async def _reset(self) -> None:
        position = self.rng.choice([None, Position(sequence_number=self.rng.randrange(10))])
        await self.scene.store.reset({each.key: position for each in await self._some_keys()})

    async def _wait(self) -> None:
        await self.scene.wait(self.rng.choice([0.1, 0.5]))

    def _somebody(self) -> Lease:
        return self.rng.choice(self.leases)

    async def _some_keys(self, most: int = 2) -> list[Resource]:
        found = list((await self.scene.store.resources(self.scene.group)).values())
        return self.rng.sample(found, min(len(found), self.rng.randint(1, most)))

    def _some_ownerships(self) -> list[Ownership]:
        return self.rng.sample(self.ownerships, min(len(self.ownerships), 2))
