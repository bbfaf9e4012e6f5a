"""The log read by Spark beside the same rows as Parquet: whole rows, and as little as will do.

Spark reads only the columns of a Parquet file that a query needs, and counts rows by the footers.
It can not tell a Python source which columns it needs; ``.schema(…)`` can. So both are shown: with
a condition that needs each column, which is how the sides are comparable, and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.report import Bar, Row
from bench.spark_scene import JSON_COLUMNS, Cost, Scene, compare, faster, load, scene
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_AS_PARQUET = Bar(words=">= 1.0 x", least=1.0)
_CUT = Bar(words=">= 2.5 x", least=2.5)
# Made anew for each run: of one with a shuffle in it Spark keeps the result.
Frame = Callable[[], "DataFrame"]
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


def _count(frame: Frame) -> Callable[[], object]:
    return lambda: frame().count()


def noop(frame: Frame) -> Callable[[], object]:
    """Every row is made, and thrown away."""
    return lambda: frame().write.format("noop").mode("overwrite").save()


def grouped(frame: Frame) -> Callable[[], list[Any]]:
    return lambda: frame().groupBy("key").count().collect()


def _json(frame: Frame) -> Callable[[], object]:
    def parsed() -> DataFrame:
        whole = frame()
        document = sf.from_json(whole.body.cast("string"), JSON_COLUMNS)
        return whole.select(document.alias("it")).select("it.*")

    return _mean(parsed)


def _mean(parsed: Frame) -> Callable[[], object]:
    return lambda: parsed().groupBy("device").agg(sf.avg("temperature")).collect()


def _whole(made: Scene, rounds: int) -> list[Row]:
    found = _row(
        "whole rows, thrown away", noop(made.read), noop(made.parquet), made, rounds, _AS_PARQUET
    )

    def ours() -> DataFrame:
        return made.read().where(EVERY_COLUMN)

    def peer() -> DataFrame:
        return made.parquet().where(EVERY_COLUMN)

    for what, work in (("count", _count), ("group by key", grouped), ("JSON: mean", _json)):
        found += _row(f"whole rows, {what}", work(ours), work(peer), made, rounds, _AS_PARQUET)
    return found


def _pruned(made: Scene, rounds: int) -> list[Row]:
    """The same as one writes it: Parquet gives only the columns; ours does, if it is told them."""
    parquet = made.parquet
    work = {
        "count; Parquet: by its footers": (
            _count(lambda: made.read("epoch long")),
            _count(parquet),
        ),
        "group by key": (grouped(lambda: made.read("key string")), grouped(parquet)),
        "JSON: mean": (_json(lambda: made.read("body binary")), _json(parquet)),
        "JSON: mean, decoded in the source": (
            _mean(lambda: made.read("device string, temperature double", json=JSON_COLUMNS)),
            _json(parquet),
        ),
    }
    found = [_row(f"needed columns, {w}", *each, made, rounds) for w, each in work.items()]
    return [row for rows in found for row in rows]


def cut(made: Scene, rounds: int) -> list[Row]:
    """Few columns of ours beside all of ours."""
    what = '.schema("key string"); peer: the whole row'
    return _row(what, noop(lambda: made.read("key string")), noop(made.read), made, rounds, _CUT)


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
