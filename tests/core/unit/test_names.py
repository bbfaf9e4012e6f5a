"""Names and keys: nothing odd gets in, and no two things get one key."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import unquote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leasehold.errors import InvalidDuration, InvalidName
from leasehold.names import (
    LONGEST_KEY,
    LONGEST_NAME,
    check_group,
    check_key,
    check_name,
    group_of,
    holder_id,
    job_key,
    last_part,
    partition_group,
    partition_key,
    seconds_of,
)


def _is_name(text: str) -> bool:
    return text.isprintable() and text == text.strip()


# Much of what could break the quoting, and anything else that may be in a name.
odd = st.text(alphabet="/%.2Ee$ ~\\?#&é\u65e5\U0001f511-_", min_size=1, max_size=6)
names = (odd | st.text(min_size=1, max_size=20)).filter(_is_name)
triples = st.tuples(names, names, names)


# ---------------------------------------------------------------------------------- keys


@pytest.mark.spec("C1")
def test_a_key_names_the_stream_with_its_namespace_the_group_and_the_partition() -> None:
    key = partition_key("ns.example/orders", "$Default", "7")
    assert key == "partition/ns.example%2Forders/$Default/7"
    assert group_of(key) == partition_group("ns.example/orders", "$Default")
    assert last_part(key) == "7"


@pytest.mark.spec("C1")
@given(one=triples, other=triples)
def test_no_two_partitions_have_one_key(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assume(one != other)
    assert partition_key(*one) != partition_key(*other)


@pytest.mark.spec("C1")
@given(triple=triples)
def test_a_key_tells_what_it_was_made_of(triple: tuple[str, str, str]) -> None:
    kind, *parts = partition_key(*triple).split("/")
    assert kind == "partition"
    assert tuple(unquote(part) for part in parts) == triple


@given(triple=triples)
def test_a_key_is_plain_text_without_path_steps(triple: tuple[str, str, str]) -> None:
    key = partition_key(*triple)
    assert check_key(key) == key
    assert key.isascii()
    assert not re.search(r"\s", key)
    assert not any(part.startswith(".") for part in key.split("/"))


@given(one=names, other=names)
def test_no_two_jobs_have_one_key(one: str, other: str) -> None:
    assert (job_key(one) == job_key(other)) == (one == other)
    assert last_part(job_key(one)) == one
    assert group_of(job_key(one)) == "job"


@given(triple=triples, name=names)
def test_a_job_is_never_mistaken_for_a_partition(triple: tuple[str, str, str], name: str) -> None:
    assert job_key(name) != partition_key(*triple)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nightly", "nightly"),
        ("a b", "a%20b"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("..", "%2E."),
        (".", "%2E"),
        (".hidden", "%2Ehidden"),
        ("v1.2", "v1.2"),
        ("$Default", "$Default"),
        ("tea@5:00", "tea@5:00"),
        ("café", "caf%C3%A9"),
        ("cafe\u0301", "cafe%CC%81"),
    ],
)
def test_what_is_odd_is_quoted_and_what_is_plain_is_left(name: str, part: str) -> None:
    assert job_key(name) == f"job/{part}"


@pytest.mark.parametrize("key", ["job/a", "a/b", "partition/s/g/0", "k/" + "x" * (LONGEST_KEY - 2)])
def test_a_key_is_two_or_more_parts(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    ["", "job", "/", "job/", "/job", "a//b", "a/b/", "a/\n", "a/\x00", "k/" + "x" * LONGEST_KEY],
)
def test_what_is_no_key_is_refused_with_an_example(key: str) -> None:
    with pytest.raises(InvalidName, match="job/nightly"):
        check_key(key)


@pytest.mark.parametrize("group", ["job", "partition/s/g", "x" * (LONGEST_KEY - 2)])
def test_a_group_is_what_may_stand_before_a_slash(group: str) -> None:
    assert check_group(group) == group


@pytest.mark.parametrize("group", ["", "/", "a/", "/a", "a//b", "a\t", "x" * (LONGEST_KEY - 1)])
def test_what_could_not_begin_a_key_is_no_group(group: str) -> None:
    with pytest.raises(InvalidName):
        check_group(group)


def test_good_names_that_are_too_long_when_quoted_are_refused_at_once() -> None:
    long = "/" * LONGEST_NAME
    with pytest.raises(InvalidName, match="1024"):
        partition_key(long, long, "0")


# --------------------------------------------------------------------------------- names


@given(name=names)
def test_a_good_name_is_returned_as_it_is(name: str) -> None:
    assert check_name(name, what="job") == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("n" * (LONGEST_NAME + 1), "257 characters and may have 256 at most"),
        (" a", "spaces at its ends"),
        ("a ", "spaces at its ends"),
        ("a\nb", "can not be shown"),
        ("a\x00b", "can not be shown"),
        ("a\u200bb", "can not be shown"),
        ("a\xa0b", "can not be shown"),
        ("a\u202eb", "can not be shown"),
        ("\ud800", "can not be shown"),
    ],
)
def test_a_bad_name_is_refused_with_what_it_is_and_why(name: str, why: str) -> None:
    with pytest.raises(InvalidName, match=why) as refused:
        check_name(name, what="stream")
    assert str(refused.value).startswith("stream ")
    assert str(refused.value).isprintable()


def test_the_longest_name_is_allowed() -> None:
    longest = "n" * LONGEST_NAME
    assert check_name(longest, what="job") == longest


@pytest.mark.parametrize(
    ("parts", "what"),
    [(("", "g", "0"), "stream"), (("s", "", "0"), "group"), (("s", "g", ""), "partition")],
)
def test_the_part_that_is_bad_is_named(parts: tuple[str, str, str], what: str) -> None:
    with pytest.raises(InvalidName, match=f"^{what} is empty"):
        partition_key(*parts)


# ------------------------------------------------------------------------------ holder ids


def test_a_holder_id_can_be_read() -> None:
    made = holder_id("billing worker", host="node-7.example", suffix="0a1b2c3d")
    assert made == "billing_worker-node_7_example-0a1b2c3d"


@given(name=names, host=st.text(max_size=80))
def test_a_holder_id_is_short_plain_and_has_three_parts(name: str, host: str) -> None:
    made = holder_id(name, host=host, suffix="0a1b2c3d")
    assert re.fullmatch(r"[A-Za-z0-9_]{1,40}-[A-Za-z0-9_]{1,40}-0a1b2c3d", made)


def test_incarnations_differ_by_their_suffix_alone() -> None:
    ids = {holder_id("w", host="h", suffix=suffix) for suffix in ("00000001", "00000002")}
    assert len(ids) == 2


@pytest.mark.parametrize("name", ["", " ", "a\n"])
def test_a_holder_needs_a_name(name: str) -> None:
    with pytest.raises(InvalidName, match=r"^holder name "):
        holder_id(name, host="h", suffix="1")


# ------------------------------------------------------------------------------- durations


@pytest.mark.spec("L6")
@given(value=st.floats(-1e3, 1e3))
def test_a_duration_is_in_its_range_or_refused_with_it(value: float) -> None:
    duration = timedelta(seconds=value)
    if 15 <= duration.total_seconds() <= 60:
        assert seconds_of(duration, what="lease", min_s=15, max_s=60) == pytest.approx(value)
    else:
        with pytest.raises(InvalidDuration, match=r"^lease is .* between 15 s and 60 s$"):
            seconds_of(duration, what="lease", min_s=15, max_s=60)
