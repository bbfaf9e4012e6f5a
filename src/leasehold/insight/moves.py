"""What becomes of a partition that an operator moves: whether the group would let it stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.core.balance.quota import Claimant, quotas

if TYPE_CHECKING:
    from leasehold.insight.groups import GroupView


def would_be_undone(view: GroupView, *, owner: str | None, to: str) -> bool:
    """Whether ``to`` would have more than its even share after a move from ``owner``.

    Members that share evenly give what is too much away within a cycle, most likely this very
    partition. Other strategies may let it stay: which one a member has, nobody tells.
    """
    change = {owner: -1, to: 1}
    after = [
        Claimant(
            holder=each.holder,
            count=each.keys + change.get(each.holder, 0),
            weight=each.weight,
            most=each.most,
        )
        for each in view.members
        if not each.leaving
    ]
    count = {each.holder: each.count for each in after}
    return count.get(to, 0) > quotas(len(view.partitions), after).get(to, 0)
