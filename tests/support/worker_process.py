"""A worker as a process that starts quickly: it ticks until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.support.worker_jobs import tick, write

from leasehold.jobs import Worker


async def main(url: str) -> None:
    worker = Worker([tick], store=url)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    write("ready", os.getpid())
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
