"""Moments as whole seconds since 1970 in UTC, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from leasehold.errors import UsageError

DAY_S = 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Days from 0001-01-01, which has the ordinal 1, to 1970-01-01.
EPOCH_ORDINAL = EPOCH.toordinal()


def floor_s(moment: datetime) -> int:
    """The last whole second that is not after the moment.

    Raises:
        UsageError: it has no time zone.
    """
    try:
        since = moment - EPOCH
    except TypeError:
        raise _naive(moment) from None
    return since.days * DAY_S + since.seconds


def ceil_s(moment: datetime) -> int:
    """The first whole second that is not before the moment.

    Raises:
        UsageError: it has no time zone.
    """
    return floor_s(moment) + (moment.microsecond > 0)


def at_s(instant_s: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(0, instant_s)


# A few days from the ends of what a datetime can say: wall times of all zones fit in between.
FIRST_S = floor_s(datetime(1, 1, 8, tzinfo=UTC))
LAST_S = floor_s(datetime(9999, 12, 24, tzinfo=UTC))


def _naive(moment: object) -> UsageError:
    return UsageError(
        f"{moment!r} is no moment: give a datetime that has a time zone, such as "
        "datetime(2026, 3, 1, tzinfo=UTC)"
    )
