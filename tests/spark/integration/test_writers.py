"""The driver's part of the writers behind ``df.write`` and ``df.writeStream``, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log_publisher import STREAM, counted, left_over, make_log, publisher, staged

from leasehold.clock import new_token
from leasehold.errors import StoreUnavailable
from leasehold.spark.log_writer.publication_ledger import PublicationLedger
from leasehold.spark.source import write
from leasehold.spark.source.write import BatchWriter, StreamWriter, TaskResult, WriteOptions


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = f"sqlite:///{tmp_path}/store.db"
    make_log(made, tmp_path)
    before = dict(write._PUBLISHERS)
    yield made
    for key in set(write._PUBLISHERS) - set(before):
        write._PUBLISHERS.pop(key).close()


@pytest.fixture(params=["commit", "publish"])
def lost_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many answers to this step as the list has numbers are lost: it is done, and not told."""
    step, losses = getattr(PublicationLedger, request.param), [1]

    def lost(*given: object, **named: object) -> object:
        found: object = step(*given, **named)
        if losses:
            losses.pop()
            raise StoreUnavailable("the connection was cut")
        return found

    monkeypatch.setattr(PublicationLedger, request.param, lost)
    return losses


def batch_of_three(url: str) -> tuple[BatchWriter, list[TaskResult]]:
    made = publisher(url)
    plan = made.plan()
    made.close()
    results = [TaskResult(each) for each in staged(plan, "a", 3)]
    return BatchWriter(WriteOptions(stream=STREAM, store=url), plan, token=new_token()), results


def query_of(url: str, checkpoint: str) -> StreamWriter:
    options = WriteOptions(stream=STREAM, store=url, name="copy", checkpoint=checkpoint)
    return StreamWriter(options, write._cached_publisher(options).plan(shared=True))


def put(query: StreamWriter, name: str, number: int) -> None:
    query.commit([TaskResult(each) for each in staged(query._plan, name, 3)], number)


@pytest.mark.spec("S1")
def test_a_save_whose_answer_was_lost_is_found(
    url: str, tmp_path: Path, lost_answers: list[int]
) -> None:
    writer, results = batch_of_three(url)
    writer.commit(results)
    assert not lost_answers
    assert counted(url) == {"a": 3}
    assert not left_over(tmp_path)


@pytest.mark.spec("S5")
@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
@pytest.mark.parametrize("trouble", ["gone", "unreadable", "damaged"])
def test_a_batch_of_a_query_whose_id_can_not_be_read_is_not_stored_again(
    url: str, tmp_path: Path, prefix: str, trouble: str
) -> None:
    path = tmp_path / "checkpoint"
    metadata = path / "metadata"
    path.mkdir()
    metadata.write_text(json.dumps({"id": "b1f2"}))
    query = query_of(url, f"{prefix}{path}")
    put(query, "a", 0)
    metadata.unlink()
    if trouble == "unreadable":
        metadata.mkdir()  # nobody can read it, root neither
    elif trouble == "damaged":
        metadata.write_text("{")
    with pytest.raises(StoreUnavailable, match=r"checkpoint/metadata, which has the id of the q"):
        put(query, "b", 0)
    assert counted(url) == {"a": 3}


@pytest.mark.spec("S5")
def test_a_query_with_a_name_needs_no_checkpoint_on_this_machine(url: str) -> None:
    query = query_of(url, "/of/another/file/system")
    put(query, "a", 0)
    put(query, "b", 0)
    put(query, "c", 1)
    assert counted(url) == {"a": 3, "c": 3}
