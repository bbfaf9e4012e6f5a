"""What one member publishes can not end the others, nor turn their plans over."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import Strategy
from leasehold.core.balance import Snapshot, plan
from leasehold.lease.group_state import MAX_KEY_LIMIT, MAX_WEIGHT, GroupState, sanitized
from leasehold.model import Changes, MemberInfo, MemberRecord, Resource, State
from leasehold.stores.postgres import rows as postgres
from leasehold.stores.sqlite import rows as sqlite

KEYS = [f"g/{number}" for number in range(6)]

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


def told(*infos: MemberInfo) -> GroupState:
    members = tuple(
        MemberRecord(holder=f"m{n}", group="g", info=info, alive=True, version=n + 1)
        for n, info in enumerate(infos)
    )
    owners = [f"m{n % len(infos)}" for n in range(len(KEYS) - 1)]
    resources = tuple(
        Resource(key=key, epoch=1, state=State.LEASED, version=50, holder=owner)
        for key, owner in zip(KEYS, owners, strict=False)
    )
    free = Resource(key=KEYS[-1], epoch=0, state=State.AVAILABLE, version=50)
    view = GroupState()
    view.apply(Changes(version=99, members=members, resources=(*resources, free)))
    return view


@pytest.mark.parametrize("strategy", list(Strategy))
@given(
    weight=anything,
    most=anything,
    draining=anything,
    loads=st.one_of(anything, st.dictionaries(st.sampled_from(KEYS), anything)),
)
def test_no_word_of_a_member_can_make_a_plan_fail(
    strategy: Strategy, weight: Any, most: Any, draining: Any, loads: Any
) -> None:
    odd = MemberInfo(weight=weight, most=most, draining=draining, loads=loads)
    view = told(MemberInfo(loads={KEYS[0]: 1.0}), odd, MemberInfo(most=4))
    members = {holder: member.info for holder, member in view.members.items()}
    snapshot = Snapshot(members=members, resources=view.resources)
    for me in members:
        plan(strategy, snapshot, me, random.Random(1))


@pytest.mark.parametrize(
    ("most", "counts_as"),
    [
        (0, 0),
        (3, 3),
        (1.5, 1),
        (2.0, 2),
        (-1, None),
        (-0.5, None),
        (True, None),
        ("2", None),
        (math.nan, None),
        (math.inf, None),
        (MAX_KEY_LIMIT + 1, None),
    ],
)
def test_a_limit_is_a_whole_number_from_zero_or_none(most: Any, counts_as: int | None) -> None:
    limit = sanitized(MemberInfo(most=most)).most
    assert limit == counts_as
    assert limit is None or type(limit) is int


@pytest.mark.parametrize(
    ("weight", "counts_as"),
    [
        (0.5, 0.5),
        (3, 3),
        (0, 1.0),
        (-2.0, 1.0),
        (math.nan, 1.0),
        (None, 1.0),
        ("9", 1.0),
        (True, 1.0),
        (math.inf, MAX_WEIGHT),
        (10**400, MAX_WEIGHT),
    ],
)
def test_a_weight_scales_something_or_counts_as_one(weight: Any, counts_as: float) -> None:
    assert sanitized(MemberInfo(weight=weight)).weight == counts_as


def test_a_load_that_is_no_measurement_counts_as_not_measured() -> None:
    loads: dict[str, Any] = {
        "g/0": 1.5,
        "g/1": math.nan,
        "g/2": math.inf,
        "g/3": -1.0,
        "g/4": "7",
        "g/5": 0,
    }
    assert sanitized(MemberInfo(loads=loads)).loads == {"g/0": 1.5, "g/5": 0}
    assert sanitized(MemberInfo(loads=None)).loads == {}  # type: ignore[arg-type]


def test_what_is_sound_is_left_as_it_is() -> None:
    info = MemberInfo(host="h", pid=7, weight=2.5, most=3, draining=True, loads={"g/0": 1.5})
    assert sanitized(info) is info
    assert told(info).members["m0"].info is info


ODD_ROWS: list[dict[str, Any]] = [
    {"host": "h", "pid": 1, "weight": 2.0, "most": 3, "draining": False, "loads": {}, "new": [1]},
    {"host": "h"},
    {"weight": "heavy", "most": "x", "loads": None},
    {"weight": None, "loads": {"g/0": "heavy", "g/1": None}},
    {"loads": [1, 2]},
]


@pytest.mark.parametrize("stored", ODD_ROWS, ids=json.dumps)
def test_what_another_release_has_stored_can_be_read(stored: dict[str, Any]) -> None:
    row = {"holder": "m", "group": "g", "alive": True, "version": 1, "dismissed": False}
    times = {"remaining_s": 1.0, "duration_s": 10.0}
    read = postgres.to_member({**row, **times, "info": dict(stored)})
    for info in (read.info, sqlite.info_of(json.dumps(stored))):
        assert sanitized(info).weight == (stored["weight"] if stored.get("weight") == 2.0 else 1.0)
        assert sanitized(info).most == (3 if stored.get("most") == 3 else None)
        assert sanitized(info).loads == {}


def test_numbers_that_json_does_not_know_come_back_as_they_were() -> None:
    info = MemberInfo(weight=math.inf, loads={"g/0": -math.inf, "g/1": 1.5})
    text = postgres.to_info(info)
    assert text is not None
    row = {"holder": "m", "group": "g", "alive": True, "version": 1, "dismissed": False}
    times = {"remaining_s": 1.0, "duration_s": 10.0}
    assert postgres.to_member({**row, **times, "info": json.loads(text)}).info == info
