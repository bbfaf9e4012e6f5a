"""Dead letters as records: what is kept of the error, and the event that is never cut."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from leasehold.events import DeadLetter, Event
from leasehold.events.dead_letters import MAX_REASON_BYTES, MAX_TRACEBACK_BYTES
from leasehold.runtime.tracebacks import reason_of, traceback_of

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def letter(**changed: object) -> DeadLetter:
    event = Event(key="ann", body=b"hello", properties={"a": "b"}, sequence_number=41)
    fields: dict[str, object] = {
        "event": event,
        "stream": "orders",
        "group": "billing",
        "partition": "3",
        "epoch": 7,
        "attempts": 5,
        "reason": "ValueError: no price",
        "traceback": "Traceback\n  line\nValueError: no price\n",
        "failed_at": AT,
    }
    return DeadLetter(**{**fields, **changed})  # type: ignore[arg-type]


def test_a_dead_letter_says_where_it_came_from_and_why() -> None:
    assert letter().properties() == {
        "a": "b",
        "leasehold-reason": "ValueError: no price",
        "leasehold-traceback": "Traceback\n  line\nValueError: no price\n",
        "leasehold-stream": "orders",
        "leasehold-group": "billing",
        "leasehold-partition": "3",
        "leasehold-sequence-number": "41",
        "leasehold-epoch": "7",
        "leasehold-attempts": "5",
        "leasehold-failed-at": "2026-01-31T12:00:00+00:00",
    }


@pytest.mark.parametrize("sign", ["x", "ä", "…", "🙂"])
def test_of_a_long_traceback_the_end_is_kept(sign: str) -> None:
    text = sign * MAX_TRACEBACK_BYTES + "\nValueError: no price\n"

    kept = letter(traceback=text).properties()["leasehold-traceback"]

    assert len(kept.encode()) <= MAX_TRACEBACK_BYTES
    assert len(kept.encode()) > MAX_TRACEBACK_BYTES - 8
    assert kept.startswith("… (cut)\n")
    assert kept.endswith("\nValueError: no price\n")


@pytest.mark.parametrize("sign", ["x", "ä", "…", "🙂"])
def test_of_a_long_reason_the_beginning_is_kept(sign: str) -> None:
    found = letter(reason="ValueError: " + sign * (1 << 20))

    kept = found.properties()["leasehold-reason"]
    short = found.short_properties()["leasehold-reason"]

    assert MAX_REASON_BYTES - 4 < len(kept.encode()) <= MAX_REASON_BYTES
    assert len(short.encode()) < len(kept.encode())
    for each in (kept, short):
        assert each.startswith(f"ValueError: {sign}")
        assert each.endswith(f"{sign}… (cut)")


def test_of_a_short_letter_the_event_is_whole() -> None:
    assert letter().short_properties() == {
        "a": "b",
        "leasehold-reason": "ValueError: no price",
        "leasehold-partition": "3",
        "leasehold-sequence-number": "41",
    }


def test_an_error_that_fails_when_it_is_asked_for_its_message_still_has_a_reason() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise KeyError("no such field")

    assert reason_of(ValueError("no price")) == "ValueError: no price"
    assert reason_of(Unspeakable()).startswith("Unspeakable: (no message")
    assert "Unspeakable" in traceback_of(Unspeakable())


def test_a_traceback_begins_with_the_first_line_that_is_not_ours() -> None:
    def handle(context: object, event: object) -> None:
        raise ValueError("no price")

    with pytest.raises(ValueError, match="no price") as raised:
        anyio.run(anyio.to_thread.run_sync, handle, None, None)
    raised.value.__traceback__ = raised.value.__traceback__.tb_next  # type: ignore[union-attr]
    text = traceback_of(raised.value)
    lines = text.splitlines()
    assert "in handle" in lines[1]
    assert "anyio" not in text
    assert lines[-1] == "ValueError: no price"


def test_an_error_whose_traceback_can_not_be_made_still_has_a_reason() -> None:
    class Odd(Exception):
        @property
        def __cause__(self) -> BaseException | None:  # type: ignore[override]
            raise RuntimeError("no cause")

    assert traceback_of(Odd("why")) == "Odd: why"


def test_text_that_utf_8_can_not_hold_is_no_hindrance() -> None:
    found = letter(traceback="\udcff", reason="ValueError: \udcff").properties()

    assert found["leasehold-traceback"] == "?"
    assert found["leasehold-reason"] == "ValueError: ?"
