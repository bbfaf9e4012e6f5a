"""Makes what Leasehold makes in a directory, and prints the modes that it has while in use."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from datetime import timedelta
from pathlib import Path

from leasehold.events import Event
from leasehold.files import Namespace
from leasehold.jobs.fences import FencedPath
from leasehold.log import Log, LogOptions
from leasehold.model import MemberInfo
from leasehold.stores import open_store

CHANGED: list[object] = []


async def lease(url: str) -> None:
    async with open_store(url) as store:
        await store.declare(["group/key"])
        length = timedelta(seconds=60)
        await store.grant(holder="h", token="t", group="group", duration=length, info=MemberInfo())
        note_modes()


MODES: dict[str, int] = {}


def note_modes() -> None:
    """Names of directories end with "/", those of sockets with "="."""
    for path in ROOT.rglob("*"):
        found = path.lstat().st_mode
        kind = "/" if stat.S_ISDIR(found) else "=" if stat.S_ISSOCK(found) else ""
        MODES[f"{path.relative_to(ROOT)}{kind}"] = stat.S_IMODE(found)


ROOT = Path(sys.argv[1])


def main() -> None:
    sys.addaudithook(lambda event, args: CHANGED.append(args) if event == "os.chmod" else None)
    options = LogOptions(socket_directory=str(ROOT / "s" / "s"))
    stream = f"orders-{os.getpid()}"
    volumes = [ROOT / "v0", ROOT / "v1"]
    with Log.open(f"sqlite:///{ROOT}/log.db", volumes=volumes, options=options) as log:
        log.create(stream, partitions=1)
        with log.producer(stream) as producer:
            producer.send([Event(body=b"a")], partition=0).result(60)
            note_modes()
    with (
        Namespace.open(f"sqlite:///{ROOT}/log.db") as files,
        files.create(f"/{stream}-notes") as writer,
    ):
        writer.write(b"text")
        writer.flush()
        note_modes()
    asyncio.run(lease(f"sqlite:///{ROOT}/leases.db"))
    with FencedPath(ROOT / "report").replace(1) as file:
        file.write(b"report")
    note_modes()
    sys.stdout.write(json.dumps({"modes": MODES, "changed": len(CHANGED)}))


if __name__ == "__main__":
    main()
