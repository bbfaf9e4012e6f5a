"""Share any keys between any number of processes.

Run it in two or three terminals, and stop one of them with Ctrl-C:

    python examples/share_partitions.py sqlite:///leases.db

with the project's environment active (``. .venv/bin/activate``).
"""

from __future__ import annotations

import signal
import sys

import anyio

from leasehold import (
    LeaseholdError,
    Member,
    MemberOptions,
    Ownership,
    open_store,
    partition_group,
    partition_key,
)

STREAM, GROUP, PARTITIONS = "shards", "workers", 8


class Worker:
    """Does the work on what this process owns. Here it only says so."""

    def opened(self, ownership: Ownership) -> None:
        print(f"mine      {ownership.key} (epoch {ownership.epoch})", flush=True)

    def drain(self, ownership: Ownership) -> bool:
        print(f"finishing {ownership.key}", flush=True)
        return True  # nothing is left to do; else return False, and call member.drained(ownership)

    def closed(self, ownership: Ownership, reason: str) -> None:
        print(f"not mine  {ownership.key} ({reason})", flush=True)


async def main(store_url: str) -> None:
    """Hold a fair share until asked to leave."""
    print(f"sharing {PARTITIONS} partitions by way of {store_url}", flush=True)
    options = MemberOptions(group=partition_group(STREAM, GROUP), name="worker")
    async with open_store(store_url) as store, anyio.create_task_group() as tasks:
        await store.declare([partition_key(STREAM, GROUP, str(n)) for n in range(PARTITIONS)])
        member = Member(store, options, keeper=Worker())
        tasks.start_soon(leave_on_signal, member)
        await member.run()
        tasks.cancel_scope.cancel()


async def leave_on_signal(member: Member) -> None:
    """Ctrl-C or SIGTERM: hand everything over, then leave."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            print("leaving: handing over to the others, if there are any", flush=True)
            member.drain()


if __name__ == "__main__":
    try:
        anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "sqlite:///leases.db")
    except* LeaseholdError as errors:
        sys.exit(f"error: {errors.exceptions[0]}")
