"""Your own file through a shared Spark pipeline. Run it in two terminals, and kill one:

    python examples/spark_pipeline.py flights.csv
    python examples/spark_pipeline.py flights.csv

CSV, Parquet or JSON lines. Characters that Delta refuses in names of columns become `_`. Each row
of the file becomes an event of a stream, and each event a row of a Delta table beside the store:
once, whatever is killed. The programs share the partitions, and end when everything is in the
table.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as json_lines
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from leasehold.errors import LeaseholdError
from leasehold.events import Event
from leasehold.log import Log, ProducerOptions
from leasehold.spark import DeltaSink, Pipeline, session

READERS = {
    ".csv": csv.read_csv,
    ".parquet": parquet.read_table,
    ".jsonl": json_lines.read_json,
}
PARTITIONS = 8
MAX_BATCH_ROWS = 1000
NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]+")


def table_in(file: Path) -> pa.Table:
    try:
        return with_usable_columns(READERS[file.suffix.lower()](file))
    except (pa.ArrowException, OSError) as error:
        sys.exit(f"error: {file} can not be read: {str(error).splitlines()[0]}")


def with_usable_columns(table: pa.Table) -> pa.Table:
    """Return it with names that Delta takes, no two alike, and text for columns without values."""
    names: list[str] = []
    for name in table.schema.names:
        base = NOT_IN_NAMES.sub("_", name.strip()) or "column"
        taken = {each.lower() for each in (*names, "partition", "sequence_number")}
        numbered = (f"{base}_{number}" for number in range(2, len(taken) + 3))
        names.append(next(each for each in (base, *numbered) if each.lower() not in taken))
    kinds = [pa.string() if pa.types.is_null(each) else each for each in table.schema.types]
    return table.rename_columns(names).cast(pa.schema(zip(names, kinds, strict=True)))


def send(table: pa.Table, file: Path, url: str, place: Path) -> None:
    """By a producer whose id is the file's: what it sends again is not stored again."""
    name = hashlib.sha256(file.read_bytes()).digest()[:16]
    with Log.open(url, volumes=[place / "events"]) as log:
        log.create(file.stem, partitions=PARTITIONS)
        with log.producer(file.stem, ProducerOptions(producer_id=name)) as producer:
            # A batch goes to one partition: a small file is sent in at least one for each.
            rows_each = min(MAX_BATCH_ROWS, -(-table.num_rows // PARTITIONS))
            for batch in table.to_batches(max_chunksize=rows_each):
                rows = [json.dumps(row, default=str).encode() for row in batch.to_pylist()]
                producer.send([Event(body=row) for row in rows])


def place_of(url: str) -> Path:
    """Beside the SQLite file; for any other store, here."""
    file = url.removeprefix("sqlite:///")
    return Path.cwd() if file == url else Path(file).parent


def main(file: Path, url: str) -> None:
    place = place_of(url)
    table = table_in(file)
    if not table.num_rows:
        print(f"{file} has no rows: nothing was sent")
        return
    send(table, file, url, place)
    columns = from_arrow_schema(table.schema)

    def rows(events: DataFrame) -> DataFrame:
        """Your transformation: here the columns of the file, and where each row was in the log."""
        row = sql.from_json(events.body.cast("string"), columns).alias("row")
        return events.select("partition", "sequence_number", row).select(
            "partition", "sequence_number", "row.*"
        )

    target = place / f"{file.stem}-table"
    done = (
        Pipeline(session(file.stem), f"log:{file.stem}", url, "table")
        .transform(rows)
        .write_to(DeltaSink(target))
        .run(until_caught_up=True)  # without it: until Ctrl-C
    )
    batches = "1 batch" if done.batches == 1 else f"{done.batches} batches"
    others = " (other drivers or runs write the rest)" if done.rows < table.num_rows else ""
    print(f"{done.rows:,} rows by this driver, in {batches}{others}")
    print(f"the Delta table is {target}; read it with")
    read = f"from deltalake import DeltaTable as T; print(T('{target}').to_pandas())"
    print(f'  python -c "{read}"')


if __name__ == "__main__":
    file, url = [*map(Path, sys.argv[1:2]), Path()][0], [*sys.argv[2:], "sqlite:///leases.db"][0]
    if file.suffix.lower() not in READERS:
        sys.exit("usage: spark_pipeline.py FILE.csv|FILE.parquet|FILE.jsonl [sqlite:///leases.db]")
    if not file.is_file():
        sys.exit(f"error: there is no file {file}")
    try:
        main(file, url)
    except LeaseholdError as error:
        sys.exit(f"error: {error}")
