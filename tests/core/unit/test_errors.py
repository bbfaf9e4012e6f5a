"""The tree of errors: as drawn, as documented, and with what a caller needs to decide."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from leasehold import errors
from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    InvalidDuration,
    InvalidName,
    InvalidOptions,
    InvalidUrl,
    LeaseholdError,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UnknownResource,
    UsageError,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "errors.md"


def classes() -> dict[str, type[LeaseholdError]]:
    found = vars(errors).values()
    return {
        each.__name__: each
        for each in found
        if inspect.isclass(each) and issubclass(each, LeaseholdError)
    }


def drawn() -> dict[str, str]:
    """Class -> the class it hangs on, from the tree in the docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for indent, name in re.findall(
        r"^    ((?:[│├└─ ]{4})*)([A-Z]\w+)(?:  |$)", inspect.getdoc(errors) or "", re.MULTILINE
    ):
        depth = len(indent) // 4
        del path[depth:]
        parents[name] = path[-1] if path else ""
        path.append(name)
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    parents = {
        name: "" if each is LeaseholdError else each.__bases__[0].__name__
        for name, each in classes().items()
    }
    assert drawn() == parents


@pytest.mark.parametrize("name", sorted(classes()))
def test_every_error_has_a_section_in_the_documentation(name: str) -> None:
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings.count(name) == 1


@pytest.mark.parametrize("name", sorted(classes()))
def test_every_error_says_in_its_docstring_what_happened(name: str) -> None:
    assert inspect.getdoc(classes()[name])


@pytest.mark.parametrize("each", [InvalidName, InvalidDuration, InvalidOptions, InvalidUrl])
def test_a_call_that_can_never_work_is_a_value_error(each: type[UsageError]) -> None:
    assert issubclass(each, UsageError)
    with pytest.raises(ValueError, match="why"):
        raise each("why")


def test_an_unknown_resource_is_a_lookup_error_and_no_usage_error() -> None:
    assert issubclass(UnknownResource, LookupError)
    assert not issubclass(UnknownResource, UsageError)


def test_losing_and_store_trouble_are_told_apart() -> None:
    assert not issubclass(LeaseLost, StoreError)
    assert not issubclass(StoreUnavailable, LeaseLost)
    assert not issubclass(CheckpointBehind, LeaseLost)


@pytest.mark.parametrize("each", [LeaseLost, FencedWrite])
def test_a_loss_says_what_when_how_and_who_has_it_now(each: type[LeaseLost]) -> None:
    lost = each("gone", key="job/a", epoch=3, reason="stolen", now_held_by="b-host-1")
    assert str(lost) == "gone"
    assert (lost.key, lost.epoch, lost.reason, lost.now_held_by) == (
        "job/a",
        3,
        "stolen",
        "b-host-1",
    )


def test_a_loss_of_which_nothing_is_known_says_so() -> None:
    lost = LeaseLost("gone")
    assert (lost.key, lost.epoch, lost.reason, lost.now_held_by) == ("", 0, "unknown", None)


def test_a_fenced_write_is_caught_as_a_loss() -> None:
    with pytest.raises(LeaseLost):
        raise FencedWrite("older epoch", key="job/a", epoch=1)
