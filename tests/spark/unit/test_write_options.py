"""What can be said to a write, and how a streaming query is known again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leasehold.errors import InvalidName, InvalidOptions, UsageError
from leasehold.spark.source.write import WriteOptions, check_identity, checkpoint_id, parse

STORE = "sqlite:///leases.db"


def test_a_batch_needs_a_store_and_a_stream() -> None:
    assert parse({"store": STORE, "path": "orders"}, streaming=False) == WriteOptions(
        stream="orders", store=STORE
    )
    assert parse({"STORE": STORE, "Stream": "log:orders"}, streaming=False).stream == "orders"
    with pytest.raises(UsageError, match="no store"):
        parse({"path": "orders"}, streaming=False)
    with pytest.raises(UsageError, match="no stream"):
        parse({"store": STORE}, streaming=False)
    with pytest.raises(InvalidOptions, match="'a' by its option and 'b'"):
        parse({"store": STORE, "stream": "a", "path": "b"}, streaming=False)


def test_a_store_is_never_shown() -> None:
    options = parse({"store": "postgresql://u:secret@h/d", "path": "orders"}, streaming=False)
    assert "secret" not in repr(options)


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean staging"):
        parse({"store": STORE, "path": "orders", "stagging": "x"}, streaming=False)
    with pytest.raises(UsageError, match=r"no option 'fence\.key'"):
        parse({"store": STORE, "path": "orders", "fence.key": "job/a"}, streaming=False)


def test_a_fence_is_whole() -> None:
    parsed = {"store": STORE, "path": "orders"}
    whole = parse(parsed | {"Fence.Key": "job/a", "fence.epoch": "7"}, streaming=True)
    assert (whole.fence_key, whole.fence_epoch) == ("job/a", 7)
    for half in ({"fence.key": "job/a"}, {"fence.epoch": "7"}):
        with pytest.raises(InvalidOptions, match="belong together"):
            parse(parsed | half, streaming=True)
    with pytest.raises(UsageError, match="whole number"):
        parse(parsed | {"fence.key": "job/a", "fence.epoch": "x"}, streaming=True)
    with pytest.raises(InvalidName):
        parse(parsed | {"name": " a "}, streaming=True)


def test_a_query_is_known_by_its_checkpoint_or_by_a_name(tmp_path: Path) -> None:
    parsed = {"store": STORE, "path": "orders"}
    here = parse(parsed | {"checkpointLocation": f"file:{tmp_path}"}, streaming=True)
    check_identity(here)
    assert not checkpoint_id(here)  # it was never started
    (tmp_path / "metadata").write_text(json.dumps({"id": "b1f2"}))
    assert checkpoint_id(here) == "b1f2"
    far = parse(parsed | {"checkpointLocation": "s3a://bucket/x"}, streaming=True)
    nowhere = parse(parsed, streaming=True)
    for options in (far, nowhere):
        assert not checkpoint_id(options)
        with pytest.raises(UsageError, match="option"):
            check_identity(options)
    check_identity(parse(parsed | {"name": "copy"}, streaming=True))
