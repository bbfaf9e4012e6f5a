"""The contract of a sink, for those that run without Spark over frames of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.postgres import database
from tests.support.sink_contract import CASES, Case, SinkSetup
from tests.support.sink_setups import SETUPS, served
from tests.support.sink_setups import setup as made


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database() as made_url:
        yield made_url


@pytest.fixture(
    params=[pytest.param(each, marks=pytest.mark.server if served(each) else ()) for each in SETUPS]
)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkSetup]:
    url = request.getfixturevalue("url") if served(request.param) else ""
    opened = made(request.param, tmp_path, url)
    yield opened
    opened.close()


@pytest.mark.spec("S4", "B5")
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_a_sink_keeps_its_contract(case: Case, setup: SinkSetup) -> None:
    case(setup)
