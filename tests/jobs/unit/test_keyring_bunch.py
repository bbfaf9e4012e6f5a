"""What a keyring knows of its keys, step by step."""

from __future__ import annotations

from leasehold.jobs.bunch import Bunch
from leasehold.model import KeyClaim, Ownership, Resource, State

KEY = "job/nightly"
ME, OTHER = "me-1", "other-1"


def proof(epoch: int) -> Ownership:
    return Ownership(key=KEY, epoch=epoch, holder=ME, token="secret")


def seen(epoch: int, holder: str | None = None, *, handed_to: str | None = None) -> Resource:
    return Resource(
        key=KEY,
        epoch=epoch,
        state=State.AVAILABLE if holder is None else State.LEASED,
        version=epoch,
        holder=holder,
        handed_to=handed_to,
    )


def wanted(bunch: Bunch, resource: Resource | None) -> int | None:
    """The epoch it would be claimed at."""
    found = bunch.want(KEY, "note", seen=resource, me=ME)
    assert found is None or found == KeyClaim(key=KEY, seen_epoch=found.seen_epoch, note="note")
    return None if found is None else found.seen_epoch


def test_what_is_free_or_ours_is_wanted_and_what_others_have_is_not() -> None:
    bunch = Bunch()
    assert wanted(bunch, None) is None
    assert wanted(bunch, seen(4)) == 4
    assert wanted(bunch, seen(4, OTHER)) is None
    assert wanted(bunch, seen(4, ME)) == 4  # the answer to a claim was lost
    assert wanted(bunch, seen(4, handed_to=OTHER)) is None
    assert wanted(bunch, seen(4, handed_to=ME)) == 4


def test_what_we_did_is_newer_than_what_was_seen_before() -> None:
    bunch = Bunch()
    assert bunch.win(proof(5))
    assert wanted(bunch, seen(4)) is None
    bunch.owe(KEY, "end")
    assert wanted(bunch, seen(5, ME)) is None  # not before the store has confirmed
    bunch.settled(dict(bunch.owed))
    for resource in (None, seen(4), seen(5, ME), seen(5)):
        assert wanted(bunch, resource) == 5
    assert wanted(bunch, seen(6, OTHER)) is None


def test_an_epoch_that_was_given_back_is_never_held_again() -> None:
    bunch = Bunch()
    bunch.win(proof(5))
    bunch.owe(KEY, "end")
    bunch.settled(dict(bunch.owed))
    assert not bunch.win(proof(5))
    assert not bunch.held
    assert bunch.owed[KEY].proof == proof(5)
    assert bunch.win(proof(6))


def test_a_confirmation_settles_what_was_told_and_nothing_newer() -> None:
    bunch = Bunch()
    bunch.win(proof(5))
    bunch.owe(KEY, "first")
    told = dict(bunch.owed)
    bunch.settled(told)
    bunch.win(proof(6))
    bunch.owe(KEY, "second")
    bunch.settled(told)
    assert bunch.owed[KEY].note == "second"


def test_a_stray_is_owed_unless_it_is_known() -> None:
    bunch = Bunch()
    bunch.stray(seen(3, ME), proof(3))
    assert bunch.owed[KEY].proof == proof(3)
    bunch.settled(dict(bunch.owed))
    bunch.stray(seen(3, ME), proof(3))  # an answer from before the release
    assert not bunch.owed
    bunch.win(proof(4))
    bunch.stray(seen(4, ME), proof(4))
    assert bunch.held == {KEY: proof(4)}
    assert not bunch.owed


def test_what_is_lost_may_be_given_back_once() -> None:
    bunch = Bunch()
    assert not bunch.lose(KEY, until_s=9.0)
    bunch.win(proof(4))
    assert bunch.lose(KEY, until_s=9.0)
    assert not bunch.lose(KEY, until_s=9.0)
    assert bunch.gone[KEY].until_s == 9.0
    bunch.owe(KEY, "stopped")
    assert not bunch.gone
    bunch.settled(dict(bunch.owed))
    bunch.owe(KEY, "again")
    assert not bunch.owed


def test_what_nobody_has_heard_of_is_given_back_with_a_note_of_its_own() -> None:
    bunch = Bunch()
    bunch.unheard = "nothing was run"
    bunch.stray(seen(3, ME), proof(3))
    assert bunch.owed[KEY].note == "nothing was run"
    assert not bunch.win(proof(3))  # the answer to the claim, after a renewal has shown it
    assert bunch.owed[KEY].note == "nothing was run"
    bunch.settled(dict(bunch.owed))
    assert not bunch.win(proof(3))
    assert bunch.owed[KEY].note == "nothing was run"


def test_what_is_said_of_a_reservation_is_not_overtaken_by_a_late_answer() -> None:
    bunch = Bunch()
    bunch.unheard = "nothing was run"
    bunch.win(proof(3))
    bunch.owe(KEY, "end")
    assert not bunch.win(proof(3))
    assert bunch.owed[KEY].note == "end"
