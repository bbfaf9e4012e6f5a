"""One ownership as the work sees it: may I still act? Asked from any thread, answered at once."""

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
    """Valid until the member says that it has ended, or does not trust its lease any more.

    The second is looked at in the moment of asking: after a pause of the whole process the answer
    is right before any other code has had time to run.
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
        """Whether the ownership may be acted upon at this very moment."""
        return self.ended is None and self.member.holds(self.ownership.key) == self.ownership

    def remaining_s(self) -> float:
        """How long it is certain to last; it is usually prolonged before that."""
        return self.member.trusted_for_s() if self.valid else 0.0

    def check(self) -> None:
        """Return if it may be acted upon.

        Raises:
            LeaseLost: it has ended, with the reason.
        """
        if not self.valid:
            raise self.lost()

    def lost(self) -> LeaseLost:
        """The error that says so."""
        reason = self.ended or "local_deadline"
        return LeaseLost(
            f"partition {self.partition} is not held here any more ({reason}; epoch "
            f"{self.ownership.epoch}): stop, and leave its events to the owner that follows",
            key=self.ownership.key,
            epoch=self.ownership.epoch,
            reason=reason,
        )
