"""A member in a process of its own, for tests that send it signals.

Reads nothing; writes one JSON object per line to stdout: what it holds, and what became of its
checkpoints. SIGTERM drains it.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import timedelta
from itertools import count

import anyio

from leasehold import LeaseTiming, Member, MemberOptions
from leasehold.clock import SystemClock, system_random
from leasehold.errors import LeaseholdError
from leasehold.model import Ownership, Position
from leasehold.stores import open_store


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Speaking:
    """A keeper that says what it is told."""

    def opened(self, ownership: Ownership) -> None:
        say(event="opened", key=ownership.key, epoch=ownership.epoch)

    def drain(self, ownership: Ownership) -> bool:
        del ownership
        return True

    def closed(self, ownership: Ownership, reason: str) -> None:
        say(event="closed", key=ownership.key, epoch=ownership.epoch, reason=reason)


async def main(url: str, group: str, name: str, lease_s: float) -> None:
    clock = SystemClock()
    timing = LeaseTiming.of(
        lease=timedelta(seconds=lease_s), renew_interval=timedelta(seconds=min(0.3, lease_s / 4))
    )
    options = MemberOptions(group=group, name=name, timing=timing)
    async with open_store(url) as store, anyio.create_task_group() as tasks:
        member = Member(store, options, clock=clock, rng=system_random(), keeper=Speaking())
        tasks.start_soon(_drain_on_sigterm, member)
        tasks.start_soon(_write, member, clock)
        await member.run()
        say(event="left")
        tasks.cancel_scope.cancel()


async def _drain_on_sigterm(member: Member) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        say(event="ready")
        async for _ in signals:
            member.drain()


async def _write(member: Member, clock: SystemClock) -> None:
    """Write under every ownership, again and again; say so the first time."""
    written: set[tuple[str, int]] = set()
    # An heir goes on from where time has got to, as real positions would.
    for number in count(int(clock.boottime_s() * 100)):
        await clock.sleep(0.05)
        for ownership in member.held():
            try:
                await member.checkpoint({ownership.key: Position(sequence_number=number)})
            except LeaseholdError as error:
                say(event="refused", key=ownership.key, why=type(error).__name__)
            else:
                term = (ownership.key, ownership.epoch)
                if term not in written:
                    written.add(term)
                    say(event="wrote", key=ownership.key, epoch=ownership.epoch)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
