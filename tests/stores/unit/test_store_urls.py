"""Store URLs: what is refused, and what the refusal says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from leasehold import LeaseTiming
from leasehold.errors import InvalidDuration, InvalidName, InvalidUrl
from leasehold.model import MemberInfo
from leasehold.names import partition_key
from leasehold.stores import open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlit:///x", "sqlite:///path"),
        ("", "memory://"),
        (None, "memory://"),
        ("memory://shared", "write memory://"),
        ("sqlite://", "sqlite:///leases.db"),
        ("sqlite:x.db", "sqlite:///leases.db"),
        ("sqlite:/x.db", "sqlite:///leases.db"),
        ("sqlite://x.db", "sqlite:///leases.db"),
        ("sqlite:///x.db?mode=ro", "no options"),
        ("postgresql://u:se@cret@127.0.0.1:1/x", "%40 for @"),
        ("postgresql://u@h/x?foo=bar", "options that libpq knows"),
    ],
)
async def test_a_wrong_url_says_what_to_write(url: Any, hint: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        async with open_store(url):
            pytest.fail("it was opened")
    assert hint in str(refused.value)
    assert "cret" not in str(refused.value)


async def test_slips_of_type_are_named() -> None:
    number: Any = 10
    with pytest.raises(InvalidDuration, match=r"lease must be a timedelta, such as .*, not 10"):
        LeaseTiming.of(lease=number)
    with pytest.raises(InvalidName, match="partition must be text, not 1: write '1'"):
        partition_key("orders", "billing", 1)  # type: ignore[arg-type]
    async with open_store("memory://") as store:
        with pytest.raises(InvalidName, match="list of keys"):
            await store.declare("job/nightly")
        with pytest.raises(InvalidName, match="5 is no key"):
            await store.declare([5])  # type: ignore[list-item]
        with pytest.raises(InvalidName, match="'a//b' is no group"):
            await store.grant(
                holder="h",
                token="t",
                group="a//b",
                duration=timedelta(seconds=10),
                info=MemberInfo(),
            )
