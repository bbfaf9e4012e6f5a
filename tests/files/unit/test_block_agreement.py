"""How the copies of a block agree on its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.block_agreement import Agreement, ReplicaAnswer, ReplicaCondition, agree
from leasehold.errors import TailUncertain

SEALED, WHOLE, CUT = ReplicaCondition.SEALED, ReplicaCondition.WHOLE, ReplicaCondition.CUT
DAMAGED, EMPTY, ABSENT = ReplicaCondition.DAMAGED, ReplicaCondition.EMPTY, ReplicaCondition.ABSENT


def answer(
    volume: str, condition: ReplicaCondition, length: int = 0, checksum: int | None = None
) -> ReplicaAnswer:
    found = length if checksum is None else checksum
    return ReplicaAnswer(volume=volume, condition=condition, length=length, checksum=found)


def decide(*answers: ReplicaAnswer, silent: tuple[str, ...] = ()) -> Agreement:
    members = [each.volume for each in answers] + list(silent)
    return agree(members, {each.volume: each for each in answers})


def at(length: int, *volumes: str) -> Agreement:
    return Agreement(length=length, volumes=volumes)


@pytest.mark.scenario("S55")
def test_equal_seals_decide() -> None:
    assert decide(answer("a", SEALED, 5), answer("b", SEALED, 5)) == at(5, "a", "b")


@pytest.mark.scenario("S55")
@pytest.mark.parametrize("other", [answer("b", SEALED, 4), answer("b", SEALED, 5, 99)])
def test_seals_that_differ_are_left_to_people(other: ReplicaAnswer) -> None:
    with pytest.raises(TailUncertain, match=r"inconsistent: .*a has 5 .*Nothing was changed"):
        decide(answer("a", SEALED, 5), other)


@pytest.mark.scenario("S56")
@pytest.mark.spec("F7")
@pytest.mark.parametrize("length", [5, 6])
def test_a_whole_copy_that_reaches_the_seal_takes_part(length: int) -> None:
    assert decide(answer("a", SEALED, 5), answer("b", WHOLE, length)) == at(5, "a", "b")


@pytest.mark.scenario("S56")
def test_a_whole_copy_shorter_than_the_seal_does_not_take_part() -> None:
    assert decide(answer("a", SEALED, 5), answer("b", WHOLE, 4)) == at(5, "a")


@pytest.mark.scenario("S57")
def test_a_cut_copy_shorter_than_the_seal_does_not_take_part() -> None:
    assert decide(answer("a", CUT, 4), answer("b", SEALED, 5)) == at(5, "b")


@pytest.mark.scenario("S58")
@pytest.mark.spec("F7")
def test_whole_copies_agree_on_the_shortest() -> None:
    found = decide(answer("a", WHOLE, 9), answer("b", WHOLE, 7), answer("c", WHOLE, 8))
    assert found == at(7, "a", "b", "c")


@pytest.mark.scenario("S59")
def test_a_cut_copy_has_no_vote_beside_a_whole_one() -> None:
    assert decide(answer("a", WHOLE, 9), answer("b", CUT, 7)) == at(9, "a")


@pytest.mark.scenario("S59")
def test_a_cut_copy_that_is_long_enough_takes_part() -> None:
    assert decide(answer("a", WHOLE, 7), answer("b", CUT, 8)) == at(7, "a", "b")


@pytest.mark.scenario("S60")
def test_cut_copies_agree_on_the_shortest() -> None:
    assert decide(answer("a", CUT, 9), answer("b", CUT, 7)) == at(7, "a", "b")


@pytest.mark.scenario("S52")
@pytest.mark.parametrize("condition", [EMPTY, ABSENT])
def test_a_copy_without_bytes_does_not_vote(condition: ReplicaCondition) -> None:
    assert decide(answer("a", condition), answer("b", WHOLE, 3)) == at(3, "b")
    assert decide(answer("a", condition), answer("b", CUT, 3)) == at(3, "b")


def test_a_copy_that_was_cut_to_nothing_does_not_vote() -> None:
    assert decide(answer("a", CUT, 0), answer("b", CUT, 3)) == at(3, "b")


@pytest.mark.scenario("S63")
def test_the_tail_is_dropped_when_everybody_says_that_there_is_none() -> None:
    assert decide(answer("a", EMPTY), answer("b", ABSENT)) == at(0)
    assert decide(answer("a", EMPTY), answer("b", CUT, 0)) == at(0)


def test_an_empty_block_that_was_sealed_is_dropped_whoever_is_missing() -> None:
    assert decide(answer("a", SEALED, 0), silent=("b",)) == at(0)


@pytest.mark.spec("F8")
@pytest.mark.parametrize("condition", [EMPTY, ABSENT])
def test_the_tail_is_not_dropped_while_a_volume_is_missing(condition: ReplicaCondition) -> None:
    with pytest.raises(TailUncertain, match=r"no answer from b, c\. .*bring back the volumes"):
        decide(answer("a", condition), silent=("b", "c"))


@pytest.mark.scenario("S62")
def test_without_any_answer_nothing_is_decided() -> None:
    with pytest.raises(TailUncertain, match="no answer from a, b"):
        decide(silent=("a", "b"))


@pytest.mark.scenario("S67")
def test_damaged_copies_decide_nothing() -> None:
    with pytest.raises(TailUncertain, match="damaged on a"):
        decide(answer("a", DAMAGED, 8), answer("b", EMPTY))


@pytest.mark.scenario("S31")
def test_a_damaged_copy_does_not_hold_up_the_others() -> None:
    assert decide(answer("a", DAMAGED, 8), answer("b", WHOLE, 9)) == at(9, "b")


@pytest.mark.scenario("S74")
@pytest.mark.parametrize("condition", [SEALED, WHOLE])
def test_one_usable_copy_is_enough(condition: ReplicaCondition) -> None:
    assert decide(answer("a", condition, 4), silent=("b", "c")) == at(4, "a")


def test_a_copy_that_was_cut_does_not_decide_while_another_may_have_more() -> None:
    with pytest.raises(TailUncertain, match=r"cut short on a; no answer from b\. .*accept_loss"):
        decide(answer("a", CUT, 4), silent=("b",))
    assert decide(answer("a", CUT, 4), answer("b", ABSENT, 0)) == at(4, "a")


def test_an_operator_may_accept_the_loss() -> None:
    cut, damaged = answer("a", CUT, 4), answer("a", DAMAGED, 2)
    assert agree(["a", "b"], {"a": cut}, accept_loss=True) == at(4, "a")
    assert agree(["a", "b"], {"a": damaged}, accept_loss=True) == at(0)
    assert agree(["a", "b"], {}, accept_loss=True) == at(0)


def test_copies_of_one_length_must_be_equal() -> None:
    with pytest.raises(TailUncertain, match="copies of one length"):
        decide(answer("a", WHOLE, 4, 1), answer("b", WHOLE, 4, 2))


@pytest.mark.scenario("S53")
def test_answers_of_strangers_are_not_heard() -> None:
    stale = answer("old", WHOLE, 2)
    assert agree(["a"], {"a": answer("a", WHOLE, 4), "old": stale}) == at(4, "a")


def test_a_block_without_members_is_a_fault_of_the_journal() -> None:
    with pytest.raises(TailUncertain, match="the journal names no volume"):
        agree([], {})


@st.composite
def life(draw: st.DrawFn) -> tuple[int, dict[str, ReplicaAnswer], list[str]]:
    """What can come of a block of which so much was acknowledged: no sound copy has less."""
    acknowledged = draw(st.integers(0, 5))
    members = ["a", "b", "c"][: draw(st.integers(1, 3))]
    answers = {}
    for member in members:
        length = draw(st.integers(acknowledged, 8))
        condition = draw(st.sampled_from([WHOLE, CUT, DAMAGED, None]))
        if condition is DAMAGED:
            length = draw(st.integers(0, max(0, acknowledged - 1)))
        if condition is not None:
            kind = EMPTY if condition is WHOLE and length == 0 else condition
            answers[member] = answer(member, kind, length)
    return acknowledged, answers, members


@pytest.mark.spec("F8")
@given(life())
def test_what_was_acknowledged_is_never_lost(
    lived: tuple[int, dict[str, ReplicaAnswer], list[str]],
) -> None:
    acknowledged, answers, members = lived
    try:
        found = agree(members, answers)
    except TailUncertain:
        sound = [each for each in answers.values() if each.condition is not DAMAGED]
        assert len(sound) < len(members)
        assert all(each.length == 0 or each.condition is CUT for each in sound)
        return
    assert found.length >= acknowledged
    assert all(answers[volume].length >= found.length for volume in found.volumes)
    assert bool(found.volumes) == bool(found.length)


def knows(
    volume: str,
    condition: ReplicaCondition,
    length: int,
    *,
    acknowledged: int = 0,
    durable: int = 0,
) -> ReplicaAnswer:
    return ReplicaAnswer(
        volume=volume,
        condition=condition,
        length=length,
        checksum=length,
        acknowledged=acknowledged,
        durable=durable,
    )


@pytest.mark.spec("F8")
def test_a_stale_copy_does_not_shorten_what_others_know_to_be_acknowledged() -> None:
    stale = knows("a", WHOLE, 2, acknowledged=2)
    others = (knows("b", WHOLE, 9, acknowledged=8), knows("c", WHOLE, 8, acknowledged=8))
    assert decide(stale, *others) == at(8, "b", "c")


@pytest.mark.spec("F8")
def test_a_durable_mark_is_a_lower_bound_too() -> None:
    stale = knows("a", WHOLE, 2, acknowledged=2)
    assert decide(stale, knows("b", WHOLE, 9, acknowledged=7, durable=7)) == at(9, "b")


@pytest.mark.spec("F8")
def test_pieces_of_several_copies_decide_where_no_copy_has_all() -> None:
    answers = {
        "a": knows("a", CUT, 8, acknowledged=9, durable=8),
        "b": knows("b", DAMAGED, 2, acknowledged=9, durable=8),
    }
    assert agree(["a", "b"], answers, together=9) == at(9)
    assert agree(["a", "b"], answers, together=8) == Agreement(length=8, volumes=("a",), lost=1)
    with pytest.raises(TailUncertain, match="no answer from c"):
        agree(["a", "b", "c"], answers, together=9)


@pytest.mark.spec("F8")
def test_what_is_missing_below_the_durable_mark_is_left_to_an_operator() -> None:
    answers = {"a": knows("a", DAMAGED, 2, acknowledged=9, durable=8)}
    with pytest.raises(TailUncertain, match="damaged on a"):
        agree(["a"], answers, together=5)
    accepted = agree(["a"], answers, together=5, accept_loss=True)
    assert accepted == Agreement(length=5, volumes=(), lost=4)


@st.composite
def stale_life(draw: st.DrawFn) -> tuple[int, int, dict[str, ReplicaAnswer], int]:
    """A block of 9 pieces in which each copy may be stale, cut, or damaged anywhere.

    Returns what was acknowledged, what was durable, the answers, and how far the pieces of all
    copies reach together.
    """
    acknowledged = draw(st.integers(1, 9))
    durable = draw(st.integers(0, acknowledged))
    members = ["a", "b", "c"][: draw(st.integers(1, 3))]
    answers, everything = {}, set[int]()
    for member in members:
        written = draw(st.integers(acknowledged, 9))
        pieces = set(range(written))
        own_acknowledged, own_durable = acknowledged, durable
        kind = draw(st.sampled_from(["sound", "stale", "cut", "damaged"]))
        if kind == "stale":  # an old snapshot: it knows no more than it has
            own_acknowledged = draw(st.integers(0, acknowledged))
            pieces = set(range(draw(st.integers(own_acknowledged, acknowledged))))
            written, own_durable = len(pieces), min(durable, own_acknowledged)
        elif kind == "cut":
            pieces = set(range(draw(st.integers(durable, written))))
        elif kind == "damaged":
            pieces -= draw(st.sets(st.integers(0, 8)))
        prefix = next(each for each in range(10) if each not in pieces)
        if prefix < own_durable:
            condition = DAMAGED
        elif prefix < max(written, own_acknowledged):
            condition = CUT
        else:
            condition = WHOLE if prefix else EMPTY
        everything |= pieces
        answers[member] = ReplicaAnswer(
            volume=member,
            condition=condition,
            length=prefix,
            checksum=prefix,
            acknowledged=own_acknowledged,
            durable=own_durable,
            pieces=frozenset(pieces),
        )
    return acknowledged, durable, answers, next(e for e in range(10) if e not in everything)


@pytest.mark.spec("F8")
@given(stale_life(), st.booleans())
def test_every_acknowledged_piece_that_a_copy_has_is_kept_and_every_loss_is_counted(
    lived: tuple[int, int, dict[str, ReplicaAnswer], int], accept_loss: bool
) -> None:
    acknowledged, durable, answers, together = lived
    known = max(each.acknowledged for each in answers.values())
    try:
        found = agree(list(answers), answers, together=together, accept_loss=accept_loss)
    except TailUncertain:
        assert not accept_loss
        assert together < max(each.durable for each in answers.values())
        return
    assert found.length <= together
    assert found.length >= min(together, known)
    assert found.lost == max(0, known - found.length)
    if any(each.acknowledged == acknowledged for each in answers.values()):
        assert found.length >= min(together, acknowledged)
        if not accept_loss and any(each.durable == durable for each in answers.values()):
            assert found.length >= durable
