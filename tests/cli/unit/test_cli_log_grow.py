"""``leasehold log grow``: what it prints, where, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import CommandLine

from leasehold.log import Log, LogOptions


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], store: str
) -> CommandLine:
    made = CommandLine(monkeypatch, capfdbinary, store)
    done = made("log", "create", "orders", "--partitions", "2", "--volume", f"{tmp_of(store)}/a")
    assert done.code == 0, done.err
    return made


def tmp_of(store: str) -> Path:
    return Path(store.removeprefix("sqlite:///")).parent


def test_it_says_what_it_has_done(leasehold: CommandLine, store: str) -> None:
    done = leasehold("log", "grow", "orders", "--partitions", "5")

    assert (done.code, "orders" in done.out) == (0, True)
    assert "2 -> 5 partitions" in done.err
    with Log.open(store, options=LogOptions(run_monitor=False)) as log:
        assert log.stream("orders").partitions == 5


def test_as_json_it_is_the_stream_with_its_settings(leasehold: CommandLine) -> None:
    done = leasehold("log", "grow", "orders", "--partitions", "5", "-o", "json")

    assert (done.json["stream"], done.json["partition_count"]) == ("orders", 5)


def test_the_same_number_again_is_harmless_and_says_so(leasehold: CommandLine) -> None:
    done = leasehold("log", "grow", "orders", "--partitions", "2")

    assert done.code == 0
    assert "it had 2 partitions already: nothing was changed" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("orders", "--partitions", "1"), 2, "has 2 partitions and can not have fewer"),
        (("orders", "--partitions", "0"), 2, "--partitions"),
        (("orders", "--partitions", "99999"), 2, "between 1 and 10000"),
        (("orders",), 2, "--partitions"),
        (("nothing", "--partitions", "3"), 3, "there is no stream 'nothing'"),
    ],
)
def test_what_can_not_be_done_is_refused(
    leasehold: CommandLine, words: tuple[str, ...], code: int, said: str
) -> None:
    done = leasehold("log", "grow", *words)

    assert (done.code, done.out) == (code, "")
    assert said in " ".join(done.err.split())
