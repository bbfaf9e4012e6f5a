"""A Structured Streaming query with a standby. Run it in two terminals, and kill the one that runs:

    python examples/standby_query.py
    seq 1000 | leasehold log append orders --batch 100 --store sqlite:///leases.db

One runs the query, the other waits with its session up, and goes on from the same checkpoint. Every
event is in the Delta table beside the store once. Ctrl-C hands the query over at once.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from leasehold.errors import LeaseholdError
from leasehold.log import Log
from leasehold.spark import DeltaSink, Fence, StandbyChanged, standby


def tell(event: StandbyChanged) -> None:
    print(event, flush=True)


def place_of(url: str) -> Path:
    """Beside the SQLite file; for any other store, here."""
    file = url.removeprefix("sqlite:///")
    return Path.cwd() if file == url else Path(file).parent


def main(url: str) -> None:
    place = place_of(url)
    with Log.open(url, volumes=[place / "events"]) as log:
        log.create("orders", partitions=4)  # again is harmless

    def query(spark: SparkSession, fence: Fence) -> StreamingQuery:
        events = spark.readStream.format("leasehold").option("store", url).load("orders")
        rows = events.selectExpr("partition", "sequence_number", "cast(body as string) as body")
        return (
            rows.writeStream.foreachBatch(fence.to(DeltaSink(place / "orders-table")))
            .option("checkpointLocation", fence.checkpoint_location)
            .trigger(processingTime="1 second")
            .start()
        )

    standby(
        query,
        name="orders",
        checkpoint_location=str(place / "orders-checkpoint"),
        store=url,
        on_event=tell,
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///leases.db")
    except LeaseholdError as error:
        sys.exit(f"error: {error}")
