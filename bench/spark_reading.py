"""The log read by Spark beside the same rows as Parquet: whole rows, and as little as will do.

Spark reads only the columns of a Parquet file that a query needs, and counts rows by the footers.
It can not tell a Python source which columns it needs; ``.schema(…)`` can. So both are shown: with
a condition that needs each column, which is how the sides are comparable, and without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.report import Bar, Row
from bench.spark_scene import JSON_COLUMNS, Cost, Scene, compare, faster, load, scene
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

_AS_PARQUET = Bar(words=">= 1.0 x", least=1.0)
_CUT = Bar(words=">= 2.5 x", least=2.5)
# True for each row, and nothing of it can be left out, pushed down or known before.
EVERY_COLUMN = (
    "octet_length(partition) + sequence_number + offset + unix_micros(enqueued_at) + epoch + "
    "octet_length(coalesce(key, '')) + octet_length(body) + coalesce(cardinality(properties), 0) "
    ">= 0"
)


def reading(*, events: int, rounds: int) -> Sequence[Row]:
    """All rows of the table about reading."""
    with scene(events=events) as made:
        made.parquet()
        return [load(), *_whole(made, rounds), *_pruned(made, rounds), *cut(made, rounds)]


def _count(frame: DataFrame) -> Callable[[], object]:
    return frame.count


def noop(frame: DataFrame) -> Callable[[], object]:
    """Every row is made, and thrown away."""
    return frame.write.format("noop").mode("overwrite").save


def grouped(frame: DataFrame) -> Callable[[], list[Any]]:
    return frame.groupBy("key").count().collect


def _json(frame: DataFrame) -> Callable[[], object]:
    parsed = frame.select(sf.from_json(frame.body.cast("string"), JSON_COLUMNS).alias("it"))
    return _mean(parsed.select("it.*"))


def _mean(parsed: DataFrame) -> Callable[[], object]:
    return parsed.groupBy("device").agg(sf.avg("temperature")).collect


def _whole(made: Scene, rounds: int) -> list[Row]:
    rows = noop(made.read()), noop(made.parquet())
    found = [_row("whole rows, thrown away", *rows, made, rounds, _AS_PARQUET)]
    for what, work in (("count", _count), ("group by key", grouped), ("JSON: mean", _json)):
        ours, peer = (work(each.where(EVERY_COLUMN)) for each in (made.read(), made.parquet()))
        found.append(_row(f"whole rows, {what}", ours, peer, made, rounds, _AS_PARQUET))
    return [row for rows in found for row in rows]


def _pruned(made: Scene, rounds: int) -> list[Row]:
    """The same as one writes it: Parquet gives only the columns; ours does, if it is told them."""
    parquet = made.parquet()
    work = {
        "count; Parquet: by its footers": (made.read("epoch long").count, parquet.count),
        "group by key": (grouped(made.read("key string")), grouped(parquet)),
        "JSON: mean": (_json(made.read("body binary")), _json(parquet)),
        "JSON: mean, decoded in the source": (
            _mean(made.read(json=JSON_COLUMNS).select("device", "temperature")),
            _json(parquet),
        ),
    }
    found = [_row(f"needed columns, {w}", *each, made, rounds) for w, each in work.items()]
    return [row for rows in found for row in rows]


def cut(made: Scene, rounds: int) -> list[Row]:
    ours, peer = noop(made.read("key string")), noop(made.read())
    what = '.schema("key string"); peer: the whole row'
    return _row(what, ours, peer, made, rounds, _CUT)


def _row(
    what: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    made: Scene,
    rounds: int,
    bar: Bar | None = None,
) -> list[Row]:
    found: dict[str, Cost] = compare({"ours": ours, "peer": peer}, rounds=rounds)
    millions = made.events / 1e6
    return [
        faster(f"{what}: s", found["ours"].wall_s, found["peer"].wall_s, bar),
        faster(
            "the same: CPU s per million events",
            found["ours"].cpu_s / millions,
            found["peer"].cpu_s / millions,
        ),
    ]
