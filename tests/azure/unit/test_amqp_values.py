from __future__ import annotations

import math
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.types import (
    Array,
    Byte,
    Char,
    DecimalBytes,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from leasehold.azure.amqp.values import decode, encode, skip

_NUMBERS = [
    st.integers(0, 2**8 - 1).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**7), 2**7 - 1).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
]
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    *_NUMBERS,
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.text(max_size=300),
    st.text("abc:-", max_size=300).map(Symbol),
    st.binary(max_size=300),
    st.uuids(),
    st.sampled_from([4, 8, 16])
    .flatmap(lambda n: st.binary(min_size=n, max_size=n))
    .map(DecimalBytes),
)
_KEYS = st.one_of(st.text(max_size=8), st.text("ab", max_size=8).map(Symbol), *_NUMBERS)
_ARRAYS = st.one_of(
    st.lists(st.text(max_size=9), max_size=5),
    st.lists(st.booleans(), max_size=5),
    st.lists(_NUMBERS[2], max_size=5),
).map(lambda items: Array(tuple(items)))
_VALUES = st.recursive(
    st.one_of(_SCALARS, _ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(_KEYS, inner, max_size=5),
        st.builds(Described, _NUMBERS[3], inner),
    ),
    max_leaves=20,
)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    return bool(one == other)


@given(_VALUES)
def test_what_is_written_is_read_again_with_its_type(value: object) -> None:
    data = encode(value)
    found, end = decode(memoryview(b"\x40" + data + b"\x41"), 1)
    assert _same(found, value)
    assert end == skip(data, 0) + 1 == len(data) + 1


@settings(max_examples=300)
@given(st.binary(max_size=200))
@example(b"\x00" * 5000)
@example(b"\xc0\x02\x01" * 3000)
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")
@example(b"\xe0\x03\xff\xe0\x02\xff\x40")
@example(b"\xc1\x04\x02\xc0\x01\x00\x40")
@example(b"\x73\xff\xff\xff\xff")
@example(b"\xa3\x01\xe9")
def test_any_bytes_are_a_value_or_a_fault(data: bytes) -> None:
    for read in (lambda: decode(data), lambda: skip(data, 0)):
        with suppress(AmqpFault):
            read()


@settings(max_examples=100)
@given(_VALUES, st.data())
def test_a_damaged_value_is_a_value_or_a_fault(value: object, chosen: st.DataObject) -> None:
    data = bytearray(encode(value))
    at = chosen.draw(st.integers(0, len(data) - 1))
    data[at] = chosen.draw(st.integers(0, 255))
    cut = chosen.draw(st.integers(1, len(data)))
    with suppress(AmqpFault):
        decode(bytes(data[:cut]))


def test_a_few_bytes_never_become_many_values() -> None:
    one = b"\xf0\x00\x00\x00\x05\x00\x00\x04\x00\x40"  # 1,024 nulls that have no bytes
    data = (
        b"\xd0" + (4 + 2000 * len(one)).to_bytes(4, "big") + (2000).to_bytes(4, "big") + one * 2000
    )
    with pytest.raises(AmqpFault, match="so few bytes"):
        decode(data)


def test_small_forms_are_used_but_never_the_empty_list() -> None:
    assert encode(UInt(0)) == b"\x43"
    assert encode(ULong(7)) == b"\x53\x07"
    assert encode("ab") == b"\xa1\x02ab"
    assert encode([]) == b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
    assert decode(b"\x45") == ([], 1)


def test_a_plain_number_is_a_long_and_too_big_a_one_is_refused() -> None:
    found, _ = decode(encode(5))
    assert type(found) is Long
    for value in (2**63, UByte(256), "\ud800", object(), Array((1, "x")), Symbol("\xe9")):
        with pytest.raises(AmqpFault):
            encode(value)


def test_an_array_of_described_values_is_read() -> None:
    items = tuple(Described(Symbol("a:b"), f"v{number}") for number in range(3))
    assert decode(encode(Array(items)))[0] == Array(items)


def test_not_a_number_stays_none_and_a_uuid_stays_itself() -> None:
    assert math.isnan(decode(encode(math.nan))[0])
    known = UUID(int=5)
    assert decode(encode(known))[0] == known


def test_every_element_of_an_array_counts_with_all_that_describes_it() -> None:
    inner = b"\x00\x40" * 20 + b"\x50"  # a byte each, described twenty times over
    many = 1000
    body = many.to_bytes(4, "big") + inner + bytes(many)
    with pytest.raises(AmqpFault, match="so few bytes"):
        decode(b"\xf0" + len(body).to_bytes(4, "big") + body)


def test_what_follows_a_value_gives_it_no_room() -> None:
    few = b"\xf0\x00\x00\x00\x05\x00\x00\x04\x00\x40"
    with pytest.raises(AmqpFault, match="so few bytes"):
        decode(few + bytes(5000))


def test_a_map_of_a_few_odd_keys_is_read_and_one_of_many_is_not() -> None:
    few = {UUID(int=number): number for number in range(64)}
    assert decode(encode(few))[0] == few
    with pytest.raises(AmqpFault, match="too many keys"):
        decode(encode({UUID(int=number): None for number in range(65)}))
    numbers = {Long(number): None for number in range(1000)}
    assert decode(encode(numbers))[0] == numbers


def test_half_a_character_is_none() -> None:
    with pytest.raises(AmqpFault):
        decode(b"\x73\x00\x00\xd8\x00")
