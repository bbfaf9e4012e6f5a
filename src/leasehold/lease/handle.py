"""``Handle``: an ownership as the work sees it. All methods may be called from any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.errors import LeaseLost
from leasehold.names import last_part

if TYPE_CHECKING:
    from leasehold.lease.member import Member
    from leasehold.model import Ownership


@dataclass(slots=True, kw_only=True)
class Handle:
    """Valid until the member ends it, or until the local deadline of the lease.

    The deadline is checked on each call, so the answer is right even directly after a pause of the
    process.
    """

    ownership: Ownership
    member: Member
    ended: str | None = field(default=None, init=False)

    @property
    def partition(self) -> str:
        """The partition's id, as the source knows it."""
        return last_part(self.ownership.key)

    @property
    def valid(self) -> bool:
        """Whether the work may act on the ownership now."""
        return self.ended is None and self.member.holds(self.ownership.key) == self.ownership

    def remaining_s(self) -> float:
        """Return how long it is certain to last; usually it is extended before."""
        return self.member.trusted_for_s() if self.valid else 0.0

    def check(self) -> None:
        """Return if the work may act on it.

        Raises:
            LeaseLost: it has ended; ``reason`` says why.
        """
        if not self.valid:
            raise self.lost()

    def lost(self) -> LeaseLost:
        """Return the error for an ownership that has ended."""
        reason = self.ended or "local_deadline"
        return LeaseLost(
            f"partition {self.partition} is not held here any more ({reason}; epoch "
            f"{self.ownership.epoch}): stop, and leave its events to the owner that follows",
            key=self.ownership.key,
            epoch=self.ownership.epoch,
            reason=reason,
        )
