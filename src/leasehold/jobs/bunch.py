"""What a keyring knows of its keys: held, lost, to be given back. No I/O, no waiting.

A key is in one of three places at most. It gets to *held* only by an answer of the store, and from
there to *gone* (lost, the work must stop) or *owed* (its release is to be told to the store). The
epoch of what was given back is kept, so that no answer that is late can bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.model import KeyClaim, Ownership, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasehold.model import Resource

_HELD = frozenset((State.LEASED, State.BREAKING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A key that was held under this proof; the work on it must have stopped by then."""

    proof: Ownership
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A release that the store has not confirmed; without a note the term keeps the one it has.

    With ``to`` the key is to be kept for that holder.
    """

    proof: Ownership
    note: str
    to: str | None = None


class Bunch:
    """The keys of one keyring, over all its leases."""

    def __init__(self) -> None:
        """None yet. ``unheard`` is the note of what was ours and nobody here has heard of."""
        self.unheard = ""
        self.held: dict[str, Ownership] = {}
        self.gone: dict[str, Gone] = {}
        self.owed: dict[str, Owed] = {}
        self._over: dict[str, int] = {}

    def want(self, key: str, note: str, *, seen: Resource | None, me: str) -> KeyClaim | None:
        """How to claim this key, by what was last seen of it; None if there is no use in it."""
        if key in self.held or key in self.owed:
            return None
        over = self._over.get(key, -1)
        if seen is None:
            return None if over < 0 else KeyClaim(key=key, seen_epoch=over, note=note)
        if seen.epoch <= over:  # seen before we gave it back
            return KeyClaim(key=key, seen_epoch=over, note=note)
        free = seen.holder is None or seen.state not in _HELD
        if seen.holder == me or (free and seen.handed_to in (None, me)):
            return KeyClaim(key=key, seen_epoch=seen.epoch, note=note)
        return None

    def win(self, proof: Ownership) -> bool:
        """It is held, unless this very epoch was given back before: then it is owed still."""
        if proof.epoch <= self._over.get(proof.key, -1):
            known = self.owed.get(proof.key)
            if known is None or known.proof.epoch != proof.epoch:
                self.owed[proof.key] = Owed(proof=proof, note=self.unheard)
            return False
        self.gone.pop(proof.key, None)
        self.held[proof.key] = proof
        return True

    def lose(self, key: str, *, until_s: float) -> bool:
        """It is held no more; False if it was not."""
        proof = self.held.pop(key, None)
        if proof is None:
            return False
        self._end(proof)
        self.gone[key] = Gone(proof=proof, until_s=until_s)
        return True

    def owe(self, key: str, note: str, *, to: str | None = None) -> None:
        """It is to be given back: what is held, and what was lost and has stopped."""
        proof = self.held.pop(key, None)
        gone = self.gone.pop(key, None)
        proof = proof or (gone.proof if gone else None)
        if proof is not None:
            self._end(proof)
            self.owed[key] = Owed(proof=proof, note=note, to=to)

    def stray(self, resource: Resource, proof: Ownership) -> None:
        """The store says that a key is ours. If we know nothing of it, it is given back."""
        key = resource.key
        known = key in self.held or key in self.owed
        if known or resource.state not in _HELD or proof.epoch <= self._over.get(key, -1):
            return
        self._end(proof)
        self.owed[key] = Owed(proof=proof, note=self.unheard)

    def settled(self, told: Mapping[str, Owed]) -> None:
        """The store has heard of these."""
        for key, each in told.items():
            if self.owed.get(key) is each:
                del self.owed[key]

    def proofs(self, keys: Iterable[str]) -> dict[str, Ownership]:
        """The proofs of those of the keys that are held."""
        return {key: self.held[key] for key in keys if key in self.held}

    def still(self, proofs: Mapping[str, Ownership]) -> dict[str, Ownership]:
        """Those of the proofs that the keys are held under at this moment."""
        return {key: each for key, each in proofs.items() if self.held.get(key) is each}

    def _end(self, proof: Ownership) -> None:
        self._over[proof.key] = max(proof.epoch, self._over.get(proof.key, -1))
