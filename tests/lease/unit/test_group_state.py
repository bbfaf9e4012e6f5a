"""What a member knows: changes that come late, twice, out of order, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.lease.group_state import MAX_FAILING, GroupState
from leasehold.model import Changes, MemberInfo, MemberRecord, Resource, State

if TYPE_CHECKING:
    from random import Random


def resource(key: str, version: int, *, holder: str | None = None, epoch: int = 0) -> Resource:
    state = State.LEASED if holder else State.AVAILABLE
    return Resource(key=key, epoch=epoch, state=state, version=version, holder=holder)


def member(holder: str, version: int, *, alive: bool = True) -> MemberRecord:
    return MemberRecord(holder=holder, group="g", info=MemberInfo(), alive=alive, version=version)


def told(*changes: Changes) -> GroupState:
    view = GroupState()
    for each in changes:
        view.apply(each)
    return view


FIRST = Changes(
    version=3, resources=(resource("g/0", 2),), members=(member("a", 1), member("b", 3))
)


def test_a_new_view_knows_nothing_and_asks_for_everything() -> None:
    view = GroupState()
    assert (view.version, dict(view.resources), dict(view.members)) == (0, {}, {})


def test_what_is_told_is_known() -> None:
    view = GroupState()
    assert view.apply(FIRST)
    assert view.version == 3
    assert view.resources["g/0"].version == 2
    assert set(view.members) == {"a", "b"}


def test_a_repeated_answer_makes_no_difference() -> None:
    view = told(FIRST)
    assert not view.apply(FIRST)
    assert view.version == 3


def test_a_quiet_answer_moves_the_version_and_nothing_else() -> None:
    view = told(FIRST)
    assert not view.apply(Changes(version=9))
    assert view.version == 9
    assert set(view.resources) == {"g/0"}


def test_a_late_answer_does_not_hide_a_newer_one() -> None:
    newer = Changes(version=8, resources=(resource("g/0", 8, holder="b", epoch=2),))
    late = Changes(version=5, resources=(resource("g/0", 5, holder="a", epoch=1),))
    view = told(FIRST, newer)
    assert not view.apply(late)
    assert view.resources["g/0"].holder == "b"
    assert view.version == 8


def test_a_late_word_about_a_member_does_not_hide_a_newer_one() -> None:
    leaving = replace(member("a", 7), info=MemberInfo(draining=True))
    view = told(
        Changes(version=7, members=(leaving,)), Changes(version=7, members=(member("a", 1),))
    )
    assert view.members["a"].info.draining


def test_what_fails_is_known_and_no_reason_to_plan_again() -> None:
    view = told(FIRST)
    failing = replace(member("a", 5), info=MemberInfo(failing={"g/0": "at 9, attempt 1"}))
    assert not view.apply(Changes(version=5, members=(failing,)))
    assert view.members["a"].info.failing == {"g/0": "at 9, attempt 1"}
    leaving = replace(failing, version=6, leave_requested=True)
    assert view.apply(Changes(version=6, members=(leaving,)))
    draining = replace(leaving, version=7, info=MemberInfo(draining=True))
    assert view.apply(Changes(version=7, members=(draining,)))


def test_what_fails_is_bounded() -> None:
    many = {f"g/{number}": "at 1, attempt 1" * 50 for number in range(100)}
    wrong = {"g/0": 7, "g/1": "at 1, attempt 2"}
    cases: list[tuple[Any, int, int]] = [(many, MAX_FAILING, 100), (wrong, 1, 15), (7, 0, 0)]
    for failing, count, chars in cases:
        view = told(
            Changes(version=1, members=(replace(member("a", 1), info=MemberInfo(failing=failing)),))
        )
        found = view.members["a"].info.failing
        assert len(found) == count
        assert max(map(len, found.values()), default=0) == chars


def test_a_lost_answer_is_made_up_for_by_the_next_that_asks_from_the_same_version() -> None:
    view = told(FIRST)
    lost = Changes(version=5, resources=(resource("g/0", 5, holder="a", epoch=1),))
    repeats = replace(lost, version=6, members=(member("c", 6),))
    assert view.version == 3
    assert view.apply(repeats)
    assert view.resources["g/0"].holder == "a"
    assert set(view.members) == {"a", "b", "c"}


def test_a_forgotten_key_is_gone_and_may_be_declared_again() -> None:
    gone = replace(resource("g/0", 5), forgotten=True)
    view = told(FIRST)
    assert view.apply(Changes(version=5, resources=(gone,)))
    assert "g/0" not in view.resources
    assert not view.apply(Changes(version=5, resources=(gone,)))
    assert view.apply(Changes(version=7, resources=(resource("g/0", 7),)))
    assert "g/0" in view.resources


def test_a_key_that_was_forgotten_before_it_was_known_makes_no_difference() -> None:
    gone = replace(resource("g/9", 5), forgotten=True)
    assert not GroupState().apply(Changes(version=5, resources=(gone,)))


def test_a_dead_member_is_gone() -> None:
    dead = Changes(version=6, members=(member("a", 6, alive=False),))
    view = told(FIRST)
    assert view.apply(dead)
    assert set(view.members) == {"b"}
    assert not view.apply(dead)


def test_a_late_answer_does_not_bring_a_forgotten_key_back() -> None:
    gone = replace(resource("g/0", 5), forgotten=True)
    view = told(Changes(version=5, resources=(gone,)), FIRST)
    assert "g/0" not in view.resources


def test_a_late_answer_does_not_bring_a_dead_member_back() -> None:
    view = told(Changes(version=6, members=(member("a", 6, alive=False),)), FIRST)
    assert "a" not in view.members


def test_learning_one_key_leaves_the_version_so_that_nothing_is_skipped() -> None:
    view = told(FIRST)
    assert view.apply_resource(resource("g/0", 8, holder="a", epoch=1))
    assert not view.apply_resource(resource("g/0", 7))
    assert view.resources["g/0"].epoch == 1
    assert view.version == 3


def test_nobody_can_write_into_what_is_known() -> None:
    view: Any = told(FIRST)
    with pytest.raises(TypeError):
        view.resources["g/1"] = resource("g/1", 1)
    with pytest.raises(TypeError):
        del view.members["a"]


keys = st.sampled_from(["g/0", "g/1", "g/2"])
words = st.lists(st.tuples(keys, st.integers(1, 9)), max_size=12)


def _everything_up_to(version: int, said: list[tuple[str, int]]) -> Changes:
    """What a store would answer at that version: all that was said by then."""
    newest = {k: v for k, v in sorted(said, key=lambda word: word[1]) if v <= version}
    return Changes(version=version, resources=tuple(resource(k, v) for k, v in newest.items()))


@given(said=words, order=st.randoms(use_true_random=False))
def test_the_newest_word_on_each_key_wins_in_any_order(
    said: list[tuple[str, int]], order: Random
) -> None:
    told_in_turn = [_everything_up_to(version, said) for _, version in said]
    order.shuffle(told_in_turn)
    view = told(*told_in_turn)
    newest = {key: max(v for k, v in said if k == key) for key, _ in said}
    assert {key: each.version for key, each in view.resources.items()} == newest
    assert view.version == max((v for _, v in said), default=0)
