"""Jobs in a store of their own, with whatever is to be shown of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from leasehold import open_store
from leasehold.jobs.run_log import RunNote
from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Ownership, Position
from leasehold.names import job_key
from leasehold.ports import Store

T = TypeVar("T")
LONG = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Jobs in one store, reserved under leases that nobody renews."""

    url: str
    portal: BlockingPortal
    store: Store

    def run(self, step: Callable[[Store], Awaitable[T]]) -> T:
        return self.portal.call(step, self.store)

    def join(self, holder: str, *jobs: str, note: RunNote | None = None) -> list[Ownership]:
        keys = [job_key(each) for each in jobs]
        text = note.to_json() if note else ""

        async def step(store: Store) -> list[Ownership]:
            await store.declare(keys)
            lease = await store.grant(
                holder=holder,
                token=f"t-{holder}",
                group="job",
                duration=LONG,
                info=MemberInfo(host="web1", pid=4711),
            )
            seen = await store.resources("job")
            wanted = [KeyClaim(key=key, seen_epoch=seen[key].epoch, note=text) for key in keys]
            return list(await store.claim(lease, wanted))

        return self.run(step)

    def leave(self, owned: Ownership, note: RunNote | None = None) -> None:
        notes = {owned.key: note.to_json()} if note else None
        self.run(lambda store: store.release([owned], notes=notes))

    def ran(self, holder: str, job: str, note: RunNote) -> None:
        self.leave(self.join(holder, job)[0], note)

    def mark(self, owned: Ownership, position: Position) -> None:
        mark = CheckpointWrite(ownership=owned, position=position)
        assert not self.run(lambda store: store.checkpoint([mark]))


@contextmanager
def jobs_in(directory: Path) -> Iterator[Jobs]:
    """A store in this directory with one job, ``nightly``, that nobody has had."""
    url = f"sqlite:///{directory}/store.db"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_store(url)) as store,
    ):
        made = Jobs(url=url, portal=portal, store=store)
        made.run(lambda store: store.declare([job_key("nightly")]))
        yield made
