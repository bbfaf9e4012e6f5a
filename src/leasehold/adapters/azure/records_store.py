"""``RecordsStore``: our hosts on a ``CheckpointStore`` of Azure's clients, and on nothing else.

What ``MixedStore`` keeps in a store of ours each host keeps for itself here, in memory. So hosts of
ours, each in its own process, meet in the records of theirs only, as stock clients do, beside
which they may run.

Guarantees:

1. A partition is claimed by compare-and-set; what a host works on was nobody else's at that moment.
   What another one takes ends here as stolen, at the next look.
2. What is over the even share, or left at the end, is drained, checkpointed and then given away:
   to one of ours, or to a client of theirs. A newcomer takes one partition by force, to be seen.
3. A host that its storage does not answer stops before anybody can take it for dead.

Not guaranteed, for their records have no room for it: a fence. A host that was paused in the very
moment of a checkpoint, and comes back after somebody else has taken over, moves the checkpoint
back, as a client of theirs does. With a store of ours, in ``MixedStore``, it is refused.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.adapters.azure.mixed_store import MixedStore
from leasehold.clock import SystemClock
from leasehold.stores.memory import MemoryStore

if TYPE_CHECKING:
    import random

    from leasehold.adapters.azure.records import AzureStore
    from leasehold.clock import Clock


class RecordsStore(MixedStore):
    """Give it to ``EventProcessor`` as its store, one for each processor."""

    _alone = True

    def __init__(
        self,
        theirs: AzureStore,
        *,
        namespace: str,
        hub: str,
        expiry: timedelta = timedelta(seconds=180),
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Connects to nothing yet. The arguments are those of ``MixedStore``.

        Raises:
            InvalidName, InvalidDuration: with what is wrong.
        """
        clock = clock or SystemClock()
        super().__init__(
            MemoryStore(clock),
            theirs,
            namespace=namespace,
            hub=hub,
            expiry=expiry,
            clock=clock,
            rng=rng,
        )

    @property
    def url(self) -> str:
        """See ``Store``: only to be shown, there is nothing to be opened by it."""
        return f"azure-records://{self._namespace}/{self._hub}"
