"""What a store keeps of a token: its digest. A reader of the store cannot act with it.

A token is a secret of 128 random bits; the digest has as many, and says nothing about it. Stores
compute it before a token leaves the process, and compare digests: how long that takes says nothing
about the token either.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.model import CheckpointWrite, HandOver, Lease, Note, Ownership

    Proven = TypeVar("Proven", HandOver, CheckpointWrite, Note)

_DIGITS = 32


def token_digest(token: str) -> str:
    """Return what is stored of a token: 128 bits of its SHA-256, as hexadecimal digits."""
    return hashlib.sha256(f"leasehold token {token}".encode()).hexdigest()[:_DIGITS]


def lease_with_digest(lease: Lease) -> Lease:
    """Return the lease as stores keep it: with the digest of its token."""
    return replace(lease, token=token_digest(lease.token))


def ownership_with_digest(ownership: Ownership) -> Ownership:
    """Return the ownership as stores compare it: with the digest of its token."""
    return replace(ownership, token=token_digest(ownership.token))


def with_digests(proven: Iterable[Proven]) -> list[Proven]:
    """Return these calls with the digests of the tokens that prove them."""
    return [replace(each, ownership=ownership_with_digest(each.ownership)) for each in proven]
