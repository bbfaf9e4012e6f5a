"""The public surface is small, and what it says it is."""

from __future__ import annotations

import types

import leasehold


def _public() -> dict[str, object]:
    return {
        name: thing
        for name, thing in vars(leasehold).items()
        if not name.startswith("_") and not isinstance(thing, types.ModuleType)
    }


def test_there_are_twenty_names_at_most() -> None:
    names = set(_public()) - {"annotations"}
    assert len(names) <= 20, sorted(names)


def test_every_one_has_a_docstring() -> None:
    undocumented = [
        name
        for name, thing in _public().items()
        if name != "annotations" and not getattr(thing, "__doc__", None)
    ]
    assert undocumented == []


def test_tokens_are_never_shown() -> None:
    lease = leasehold.Lease(holder="h", token="very-secret", group="a/b", duration_s=10.0)
    ownership = leasehold.Ownership(key="a/b/c", epoch=1, holder="h", token="very-secret")
    assert "very-secret" not in f"{lease!r} {ownership!r} {lease} {ownership}"
