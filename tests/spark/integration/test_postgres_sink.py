"""The PostgreSQL sink without Spark: types, refusals, staging tables, keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count

import psycopg
import pyarrow as pa
import pytest
from tests.support.local_frames import local_frame
from tests.support.postgres import database, execute
from tests.support.postgres_proxy import proxy
from tests.support.sink_contract import GROUP, batch_of, known

from leasehold.errors import (
    BatchFailed,
    SinkChanged,
    SinkUnfit,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from leasehold.spark import PostgresSink, SinkPosition
from leasehold.spark.sinks.postgres.sink import to_hex

pytestmark = pytest.mark.server

_NUMBERS = count(1)
Open = Callable[..., PostgresSink]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database(migrated=False) as made:
        yield made


@pytest.fixture
def table() -> str:
    return f"t{next(_NUMBERS)}"


@pytest.fixture
def opened(url: str, table: str) -> Iterator[Open]:
    sinks: list[PostgresSink] = []

    def made(**options: object) -> PostgresSink:
        sinks.append(PostgresSink(url, table, **options))  # type: ignore[arg-type]
        sinks[-1].open()
        return sinks[-1]

    yield made
    for each in sinks:
        each.close()


def _put(sink: PostgresSink, start: int, schema: str, rows: list[tuple[object, ...]]) -> int:
    batch = batch_of(("0", start, start + 1, 1))
    return sink.commit(sink.stage(local_frame(schema, rows), batch), batch).rows


def test_every_type_arrives_as_it_was(url: str, table: str, opened: Open) -> None:
    schema = (
        "a bigint, b int, c double, d string, e binary, f boolean, g date, h timestamp, "
        "i timestamp_ntz, j decimal"
    )
    moment = datetime(2026, 1, 31, 23, 59, 59, 123456)  # noqa: DTZ001 - it has no zone
    full = (
        -(2**63), 7, 0.1, 'a "quoted", text\nof ünïcode \\x', b"\x00\xff\\x", True,
        date(2024, 2, 29), moment.replace(tzinfo=UTC), moment, Decimal("-12345678.90"),
    )  # fmt: skip
    nulls = (None,) * 10
    odd = (0, 0, math.inf, "", b"", False, date(1, 1, 1), moment.replace(tzinfo=UTC), moment, 0)
    sink = opened(create=True)
    assert _put(sink, 0, schema, [full, nulls, odd]) == 3
    found = execute(url, f"select * from {table} order by a nulls last")
    assert [tuple(row) for row in found] == [full, odd, nulls]


def test_not_a_number_is_a_number_for_the_server(url: str, table: str, opened: Open) -> None:
    _put(opened(create=True), 0, "a double", [(math.nan,), (-math.inf,)])
    assert execute(url, f"select a::text from {table} order by a") == [("-Infinity",), ("NaN",)]


def test_bytes_of_a_slice_become_hex() -> None:
    whole = pa.array([b"no", b"\x0a\xff", None, b"", b"z"], pa.binary())
    assert to_hex(whole.slice(1, 3)).to_pylist() == ["\\x0aff", None, "\\x"]
    assert to_hex(pa.array([], pa.binary())).to_pylist() == []


def test_a_missing_table_is_refused_with_the_statement_that_makes_it(
    url: str, table: str, opened: Open
) -> None:
    sink, frame = opened(key=["100%"]), local_frame("100% bigint, word string", [(1, "a")])
    batch = batch_of(("0", 0, 1, 1))
    with pytest.raises(SinkUnfit, match="create=True") as refused:
        sink.stage(frame, batch)
    statement = str(refused.value).split("\n")[1]
    execute(url, statement)
    assert sink.commit(sink.stage(frame, batch), batch).rows == 1
    assert execute(url, f"select * from {table}") == [(1, "a")]


def test_columns_that_do_not_fit_are_listed(url: str, table: str, opened: Open) -> None:
    execute(url, f"create table {table} (id int, word varchar(3), at timestamptz not null)")
    with pytest.raises(SinkUnfit) as refused:
        _put(opened(), 0, "id bigint, word string, more double", [(1, "a", 0.0)])
    text = str(refused.value)
    assert "'id' is integer in the table and bigint here" in text
    assert "no column 'more' (double)" in text
    assert "'at' (timestamp with time zone) may not be null" in text
    assert "'word'" not in text
    with pytest.raises(SinkUnfit, match="'tags' is array<bigint>: write to_json"):
        _put(opened(), 0, "tags array", [([1],)])


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ("word varchar(3)", ("word",), "value too long"),
        ("word int", ("word",), "invalid input syntax for type integer"),
        ("word text", ("a\0b",), "0x00"),
        ("word text not null", (None,), "null value"),
        ("word text check (word <> 'bad')", ("bad",), "violates check constraint"),
    ],
)
def test_values_that_do_not_fit_are_refused_and_nothing_is_committed(
    url: str, table: str, opened: Open, columns: str, row: tuple[object], message: str
) -> None:
    execute(url, f"create table {table} ({columns})")
    sink = opened()
    with pytest.raises(SinkUnfit, match=message):
        _put(sink, 0, "word string", [("1",), row])
    assert execute(url, f"select * from {table}") == []
    assert known(sink).position is None


def test_a_row_with_a_known_key_takes_the_place_of_the_other(
    url: str, table: str, opened: Open
) -> None:
    sink = opened(key=["id"], create=True)
    assert _put(sink, 0, "id bigint, word string", [(1, "a"), (2, "b")]) == 2
    assert _put(sink, 1, "id bigint, word string", [(2, "c"), (3, "d")]) == 2
    assert execute(url, f"select * from {table} order by 1") == [(1, "a"), (2, "c"), (3, "d")]
    with pytest.raises(SinkUnfit, match="group by the key"):
        _put(sink, 2, "id bigint, word string", [(9, "a"), (9, "b")])
    with pytest.raises(SinkUnfit, match=r"'id' is in key"):
        _put(sink, 2, "word string", [("a",)])
    assert known(sink).position == 2


def test_a_table_that_is_all_key_takes_rows_again(url: str, table: str, opened: Open) -> None:
    sink = opened(key=["id", "word"], create=True)
    for start in (0, 1):
        assert _put(sink, start, "id bigint, word string", [(1, "a")]) == 1
    assert execute(url, f"select * from {table}") == [(1, "a")]


def test_a_key_without_an_index_is_refused_with_the_statement_that_makes_it(
    url: str, table: str, opened: Open
) -> None:
    execute(url, f"create table {table} (id bigint, word text)")
    with pytest.raises(SinkUnfit, match="unique index") as refused:
        _put(opened(key=["id"]), 0, "id bigint, word string", [(1, "a")])
    execute(url, str(refused.value).split(", with ")[1])
    assert _put(opened(key=["id"]), 0, "id bigint, word string", [(1, "a")]) == 1


class _Twice:
    """Spark runs a task twice and takes one of the answers."""

    def __init__(self, frame: object) -> None:
        self._frame = frame
        self.schema = frame.schema  # type: ignore[attr-defined]

    def mapInArrow(self, task: object, answer: str) -> object:  # noqa: N802 - Spark's name
        self._frame.mapInArrow(task, answer).collect()  # type: ignore[attr-defined]
        return self._frame.mapInArrow(task, answer)  # type: ignore[attr-defined]


@pytest.mark.spec("S4")
def test_rows_of_an_attempt_that_did_not_answer_are_not_taken(
    url: str, table: str, opened: Open
) -> None:
    sink, batch = opened(create=True), batch_of(("0", 0, 3, 1))
    frame = _Twice(local_frame("id bigint", [(1,), (2,), (3,)]))
    staged = sink.stage(frame, batch)  # type: ignore[arg-type]
    assert sink.commit(staged, batch).rows == 3
    assert execute(url, f"select * from {table} order by 1") == [(1,), (2,), (3,)]


@pytest.mark.spec("S4")
def test_staged_rows_that_a_crash_of_the_server_took_are_missed(
    url: str, table: str, opened: Open
) -> None:
    sink, batch = opened(create=True), batch_of(("0", 0, 3, 1))
    frame = local_frame("id bigint", [(1,), (2,)])
    staged = sink.stage(frame, batch)
    ((name,),) = _stages(url, table)
    execute(url, f'truncate leasehold_sink."stage_{name}"')  # as recovery does
    with pytest.raises(BatchFailed, match="2 rows were staged"):
        sink.commit(staged, batch)
    sink.discard(staged)
    with pytest.raises(BatchFailed, match="dropped"):
        sink.commit(staged, batch)
    assert known(sink) == SinkPosition()
    assert sink.commit(sink.stage(frame, batch), batch).rows == 2


def test_a_table_that_was_dropped_meanwhile_is_noticed(url: str, table: str, opened: Open) -> None:
    sink, batch = opened(create=True), batch_of(("0", 0, 3, 1))
    staged = sink.stage(local_frame("id bigint", [(1,)]), batch)
    execute(url, f"drop table {table}")
    with pytest.raises(SinkChanged, match="does not exist"):
        sink.commit(staged, batch)


def test_staging_tables_go_with_their_batch(url: str, table: str, opened: Open) -> None:
    sink = opened(create=True)
    sink.fence(GROUP, {"0": 1})
    _put(sink, 0, "id bigint", [(1,)])
    assert _stages(url, table) == []
    sink.stage(local_frame("id bigint", [(2,)]), batch_of(("0", 1, 2, 1)))
    other = opened()
    assert len(_stages(url, table)) == 1, "its driver may still be at work"
    other.fence(GROUP, {"0": 2})
    opened()
    assert _stages(url, table) == [], "nobody can commit it any more"
    sink.stage(local_frame("id bigint", [(2,)]), batch_of(("1", 0, 1, 1)))
    ((name,),) = _stages(url, table)
    execute(url, "update leasehold_sink.sink_staging set made_at = now() - interval '25 hours'")
    opened()
    assert _stages(url, table) == []
    gone = execute(url, "select to_regclass(%s)", f"leasehold_sink.stage_{name}")
    assert gone == [(None,)]


def test_a_task_that_nobody_waits_for_does_not_hold_up_the_commit(
    url: str, table: str, opened: Open
) -> None:
    sink, batch = opened(create=True), batch_of(("0", 0, 1, 1))
    staged = sink.stage(local_frame("id bigint", [(1,)]), batch)
    ((name,),) = _stages(url, table)
    with psycopg.connect(url) as stray:
        stray.execute(f"insert into leasehold_sink.\"stage_{name}\" values (7, 'stray')".encode())
        assert sink.commit(staged, batch).rows == 1
        assert execute(url, f"select * from {table}") == [(1,)]
        assert len(_stages(url, table)) == 1
    opened()
    assert _stages(url, table) == []


def test_triggers_of_the_table_find_their_own_tables(url: str, table: str, opened: Open) -> None:
    execute(url, f"create table {table} (id bigint); create table noted_{table} (id bigint)")
    execute(
        url,
        f"create function note_{table}() returns trigger language plpgsql as $$ begin "
        f"insert into noted_{table} values (new.id); "
        "if new.id = 2 then return null; end if; return new; end $$",
    )
    execute(
        url,
        f"create trigger note before insert on {table} "
        f"for each row execute function note_{table}()",
    )
    sink = opened()
    assert _put(sink, 0, "id bigint", [(1,), (2,)]) == 1, "the trigger has skipped one"
    assert execute(url, f"select * from noted_{table} order by 1") == [(1,), (2,)]
    assert known(sink).position == 1


def test_a_failed_task_leaves_no_staging_table(url: str, table: str, opened: Open) -> None:
    sink = opened(create=True)

    class Failing(_Twice):
        def mapInArrow(self, task: object, answer: str) -> object:  # noqa: N802 - Spark's name
            raise ZeroDivisionError

    frame = Failing(local_frame("id bigint", []))
    with pytest.raises(ZeroDivisionError):
        sink.stage(frame, batch_of(("0", 0, 1, 1)))  # type: ignore[arg-type]
    assert _stages(url, table) == []


def test_a_server_that_tasks_can_not_reach_is_no_fault_of_the_rows(url: str, table: str) -> None:
    class Shut(_Twice):
        def mapInArrow(self, task: object, answer: str) -> object:  # noqa: N802 - Spark's name
            door.close()
            return self._frame.mapInArrow(task, answer)  # type: ignore[attr-defined]

    frame = Shut(local_frame("id bigint", [(1,)]))
    with proxy(url) as door:
        sink = PostgresSink(door.url, table, create=True, patience_s=0.1)
        sink.open()
        with pytest.raises(StoreUnavailable, match="a task could not write"):
            sink.stage(frame, batch_of(("0", 0, 1, 1)))  # type: ignore[arg-type]
        sink.close()


@pytest.mark.spec("S4")
def test_a_staging_table_whose_answer_was_lost_is_found(url: str, table: str) -> None:
    batch = batch_of(("0", 0, 2, 1))
    frame = local_frame("id bigint", [(1,), (2,)])
    with proxy(url) as door:
        sink = PostgresSink(door.url, table, create=True)
        sink.open()
        sink.fence(GROUP, {"0": 1})
        door.at_commit = "cut_after_once"
        staged = sink.stage(frame, batch)
        assert door.at_commit == "pass", "an answer was lost"
        assert _stages(url, table) == [(staged.inside.batch,)]
        assert sink.commit(staged, batch).rows == 2
        sink.close()
    assert execute(url, f"select * from {table} order by 1") == [(1,), (2,)]
    assert _stages(url, table) == []


def test_secrets_are_never_shown(url: str) -> None:
    sink = PostgresSink("postgresql://ann:hunter2@127.0.0.1:1/db", "words", patience_s=0.1)
    assert sink.name == "postgres:postgresql://ann@127.0.0.1:1/db words"
    with pytest.raises(StoreError) as error:
        sink.open()
    assert "hunter2" not in f"{error.value} {error.value!r} {sink!r} {vars(error.value)}"


def test_what_can_not_work_is_said_at_once(url: str) -> None:
    with pytest.raises(UsageError, match=r"key=\['id'\]"):
        PostgresSink(url, "words", key="id")
    with pytest.raises(UsageError, match="not open"):
        PostgresSink(url, "words").fence(GROUP, {"0": 1})
    with pytest.raises(SinkUnfit, match="no name of a table"):
        PostgresSink(url, "my words").open()


def test_a_table_in_another_schema_is_found(url: str) -> None:
    execute(url, 'create schema reports; create table reports."My Words" (id bigint)')
    sink = PostgresSink(url, 'reports."My Words"')
    sink.open()
    assert _put(sink, 0, "id bigint", [(1,)]) == 1
    assert execute(url, 'select * from reports."My Words"') == [(1,)]
    sink.close()


def _stages(url: str, table: str) -> list[tuple[object, ...]]:
    ours = "select id from leasehold_sink.sink_staging where sink = %s"
    return execute(url, ours, f"public.{table}")
