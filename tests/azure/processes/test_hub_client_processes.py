"""Processes with the stock clients of Python in one consumer group, with records in Azurite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.support.hub_js.child import python_child
from tests.support.hub_js.group import group, share_and_part

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


@pytest.mark.parametrize("member", ["member.py", "member_blocking.py"])
def test_processes_share_a_hub_and_go_on_for_one_that_is_killed(
    tmp_path: Path, member: str
) -> None:
    with group(tmp_path, partial(python_child, member)) as them:
        share_and_part(them, ends=["killed"])
