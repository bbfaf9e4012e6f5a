"""The public surface is small, and what it says it is."""

from __future__ import annotations

from types import ModuleType

import pytest

import leasehold
import leasehold.azure
import leasehold.events
import leasehold.files
import leasehold.insight
import leasehold.jobs
import leasehold.log
import leasehold.processor
import leasehold.spark

MODULES = [
    leasehold,
    leasehold.files,
    leasehold.azure,
    leasehold.insight,
    leasehold.jobs,
    leasehold.log,
    leasehold.processor,
    leasehold.events,
    leasehold.spark,
]


def test_there_are_twenty_names_at_most() -> None:
    assert len(leasehold.__all__) <= 20


@pytest.mark.parametrize("module", MODULES)
def test_every_one_is_there_and_has_a_docstring(module: ModuleType) -> None:
    undocumented = [name for name in module.__all__ if not getattr(module, name).__doc__]
    assert undocumented == []


def test_tokens_are_never_shown() -> None:
    lease = leasehold.Lease(holder="h", token="very-secret", group="a/b", duration_s=10.0)
    ownership = leasehold.Ownership(key="a/b/c", epoch=1, holder="h", token="very-secret")
    assert "very-secret" not in f"{lease!r} {ownership!r} {lease} {ownership}"


@pytest.mark.parametrize("module", MODULES)
def test_no_name_is_hidden_by_a_module(module: ModuleType) -> None:
    """A module that was imported is an attribute of its package, before any lazy name."""
    for name in module.__all__:
        for _ in range(2):
            assert not isinstance(getattr(module, name), ModuleType), name


@pytest.mark.parametrize("module", MODULES)
def test_what_is_not_there_is_refused_by_its_name(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"{module.__name__}.*nothing"):
        module.nothing  # noqa: B018
