"""What can be a job, and what is said of that which can not."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from leasehold.errors import (
    InvalidDuration,
    InvalidName,
    InvalidOptions,
    InvalidSchedule,
    UsageError,
)
from leasehold.jobs import CatchUp, OnCrash, Overlap, Policy, Worker, job
from leasehold.jobs.worker.definition import check_jobs


def nothing() -> None:
    """A job that needs no argument."""


def with_run(run: object) -> object:
    return run


async def later(run: object) -> None:
    """An async job."""


class Callable:
    async def __call__(self) -> None:
        """A job that is an object."""


def test_a_job_is_still_the_function_that_it_was() -> None:
    made = job("nightly", cron="0 30 2 * * *", tz="Europe/Berlin")(with_run)
    assert made(7) == 7
    assert made.key == "job/nightly"
    assert made.words == "0 30 2 * * * Europe/Berlin"
    assert job("svc")(nothing).words == ""


@pytest.mark.parametrize(
    ("function", "takes_run", "is_async"),
    [
        (nothing, False, False),
        (with_run, True, False),
        (later, True, True),
        (Callable(), False, True),
        (partial(with_run, 1), False, False),
        (partial(later), True, True),
        (lambda run=None: run, True, False),
        (lambda *, also=1: also, False, False),
    ],
)
def test_functions_of_all_kinds_can_be_jobs(function: Any, takes_run: bool, is_async: bool) -> None:
    made = job("any")(function)
    assert (made.takes_run, made.is_async) == (takes_run, is_async)


def two(first: object, second: object) -> None:
    """Wants too much."""


def named(*, run: object) -> None:
    """Can not be given it."""


async def stream() -> Any:
    yield 1


@pytest.mark.parametrize("function", [two, named, stream, int, 7])
def test_what_can_not_be_run_is_refused_at_once(function: Any) -> None:
    with pytest.raises(UsageError, match="a job is `def work"):
        job("any")(function)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cron": "0 2 * * *", "every": "5m"}, InvalidOptions, "not both"),
        ({"cron": "61 * * * *"}, InvalidSchedule, "61"),
        ({"every": 30}, InvalidSchedule, "'30s'"),
        ({"cron": "0 2 * * *", "tz": "Mars/Base"}, InvalidSchedule, "Mars"),
        ({"overlap": "both"}, InvalidOptions, "'skip', 'queue', 'replace'"),
        ({"catchup": "all"}, InvalidOptions, "no option 'catchup'"),
        ({"retries": -1}, InvalidOptions, "retries"),
        ({"timeout": timedelta(seconds=-1)}, InvalidDuration, "timeout"),
        ({"lease": timedelta(0)}, InvalidDuration, "lease"),
        ({"on_start": True}, InvalidOptions, "no schedule"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        job("any", **options)


def test_single_options_go_before_those_of_the_policy() -> None:
    policy = Policy(retries=3, overlap=Overlap.QUEUE)
    made = job("any", every="5m", policy=policy, overlap="replace", catch_up=CatchUp.ALL)(nothing)
    assert made.policy == Policy(retries=3, overlap=Overlap.REPLACE, catch_up=CatchUp.ALL)
    assert job("any", on_crash="abandon")(nothing).policy.on_crash is OnCrash.ABANDON


def test_a_policy_takes_text_for_its_enums_and_refuses_other_text() -> None:
    made = Policy(on_crash="abandon", overlap="queue", catch_up="all")  # type: ignore[arg-type]
    assert made == Policy(on_crash=OnCrash.ABANDON, overlap=Overlap.QUEUE, catch_up=CatchUp.ALL)
    with pytest.raises(InvalidOptions, match="on_crash must be one of 'rerun', 'abandon'"):
        Policy(on_crash="leave")  # type: ignore[arg-type]


def test_a_worker_needs_jobs_of_different_names() -> None:
    one = job("one")(nothing)
    assert check_jobs([one, one]) == [one]
    with pytest.raises(UsageError, match="two jobs named 'one'"):
        check_jobs([one, job("one")(with_run)])
    with pytest.raises(UsageError, match="one job at least"):
        check_jobs([])
    with pytest.raises(UsageError, match="is no job"):
        check_jobs([nothing])  # type: ignore[list-item]
    with pytest.raises(InvalidName):
        job("")
    with pytest.raises(InvalidOptions, match="max_concurrent"):
        Worker([one], store="memory://", max_concurrent=0)
