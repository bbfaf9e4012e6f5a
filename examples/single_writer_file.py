"""One file, one writer at a time: a second one is told who writes, and may take over.

    python examples/single_writer_file.py

with the project's environment active (``. .venv/bin/activate``).
It makes a store and two volumes in a temporary directory, and plays both parts itself.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from leasehold import LeaseholdError
from leasehold.errors import FileHeld, LeaseLost
from leasehold.files import Namespace

PATH = "/reports/today"


def main(place: Path) -> None:
    """Write, be shut out, and see that nothing acknowledged was lost."""
    store, volumes = f"sqlite:///{place}/leases.db", [place / "disk1", place / "disk2"]
    with (
        Namespace.open(store, volumes=volumes, name="first") as mine,
        Namespace.open(store, name="second") as yours,
    ):
        first = mine.create(PATH)
        first.write(b"one\n")
        first.sync()
        print(f"first writes under epoch {first.epoch}; {first.acknowledged} bytes are durable")

        try:
            yours.append(PATH)
        except FileHeld as held:
            print(f"second is refused: held by {held.holder.rsplit('-', 2)[0]}")

        status = yours.recover(PATH, timeout=timedelta(seconds=10))
        print(f"second recovers the file: {status.state.value}, {status.length} bytes")
        with yours.append(PATH) as second:
            second.write(b"two\n")
            print(f"second writes under epoch {second.epoch}")

        first.write(b"too late\n")
        try:
            first.sync()
        except LeaseLost as lost:
            print(f"first is shut out: {lost.reason}")

        print("the file:", yours.read(PATH).read())
        print("faults on any volume:", len(yours.verify(PATH)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        try:
            main(Path(directory))
        except LeaseholdError as error:
            sys.exit(f"error: {error}")
