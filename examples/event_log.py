"""An event log without a server: producers send, readers read from where they like.

    python examples/event_log.py

with the project's environment active (``. .venv/bin/activate``).
It makes a store and a volume in a temporary directory. In your own programs open the log in each
process: any number of producers on one machine may share a stream.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from leasehold import LeaseholdError
from leasehold.events import Event, Start
from leasehold.log import Log


def main(place: Path) -> None:
    """Send events by key and as a table, and read them back in three ways."""
    with Log.open(f"sqlite:///{place}/leases.db", volumes=[place / "disk"]) as log:
        log.create("orders", partitions=2)

        with log.producer("orders") as producer:
            sent = [producer.send(Event(key=name, body=b"hello")) for name in ("ann", "dan", "eve")]
            for future in sent:
                for receipt in future.result():  # stored, and safe from a power cut
                    print(f"stored in partition {receipt.partition} as {receipt.first_sequence}")
            table = pa.table({"key": ["ann"] * 1000, "body": [f"{n}" for n in range(1000)]})
            [receipt] = producer.send(table).result()
            print(f"{receipt.count} events of ann from {receipt.first_sequence} on")

        ann = receipt.partition
        with log.reader(
            "orders", ann, start=Start.sequence(receipt.first_sequence + 998)
        ) as reader:
            for batch in reader.batches():
                print("from a number:", [event.body.decode() for event in batch])

        with log.reader("orders", ann, start=Start.earliest()) as reader:
            found = sum(len(batch) for batch in reader.find("ann"))
            print(f"by key: {found} events of ann")

        with log.reader("orders", ann, start=Start.latest()) as reader:
            with log.producer("orders") as producer:
                producer.send(Event(key="ann", body=b"news")).result()
            if reader.wait(timedelta(seconds=5)) and (news := reader.read()):
                print("followed:", [event.body.decode() for event in news])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        try:
            main(Path(directory))
        except LeaseholdError as error:
            sys.exit(f"error: {error}")
