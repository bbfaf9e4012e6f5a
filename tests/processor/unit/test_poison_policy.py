"""What becomes of an event that its handler cannot take: the policies."""

from __future__ import annotations

import pytest

from leasehold.core.backoff import Backoff
from leasehold.core.poison_policy import PoisonAction
from leasehold.errors import InvalidOptions
from leasehold.spark import PoisonPolicy

PAUSES = Backoff(base_s=1.0, max_s=2.0)


@pytest.mark.spec("B6")
def test_retry_is_never_exhausted() -> None:
    assert not PoisonPolicy.retry().exhausted(10**9)


@pytest.mark.spec("B6")
@pytest.mark.parametrize(
    ("policy", "then"),
    [
        (PoisonPolicy.skip(retries=3), PoisonAction.SKIP),
        (PoisonPolicy.dead_letter(retries=3), PoisonAction.DEAD_LETTER),
        (PoisonPolicy.stop(retries=3), PoisonAction.STOP),
    ],
)
def test_three_retries_are_four_attempts(policy: PoisonPolicy, then: PoisonAction) -> None:
    assert policy.then is then
    assert not policy.exhausted(3)
    assert policy.exhausted(4)


def test_no_retries_means_that_the_first_failure_is_the_last() -> None:
    assert PoisonPolicy.skip(retries=0).exhausted(1)


@pytest.mark.parametrize(
    "policy",
    [
        PoisonPolicy.retry(pauses=PAUSES),
        PoisonPolicy.skip(pauses=PAUSES),
        PoisonPolicy.dead_letter(pauses=PAUSES),
        PoisonPolicy.stop(pauses=PAUSES),
    ],
)
def test_the_pauses_are_the_ones_that_were_given(policy: PoisonPolicy) -> None:
    assert policy.pauses is PAUSES


def test_pauses_grow_up_to_a_minute_unless_told_otherwise() -> None:
    pauses = PoisonPolicy.retry().pauses
    assert pauses.base_s < 1.0
    assert pauses.max_s == 60.0


def test_a_negative_number_of_retries_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="retries >= 0"):
        PoisonPolicy.skip(retries=-1)
