"""Fields of a cron line: numbers, names, ranges, steps and lists.

What can be read in two ways is refused, with what to write instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.errors import BadSchedule

_YEAR_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its name, its range, what its numbers are called, and whether it is a circle."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    wraps: bool = False
    unit: str = ""

    @property
    def size(self) -> int:
        """How many different numbers it has."""
        return self.most - self.least + (0 if self.wraps else 1)

    @property
    def range(self) -> str:
        """Its range, in words."""
        called = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.least} to {self.most}{called}"


SECOND = Field(name="second", least=0, most=59, unit="s")
MINUTE = Field(name="minute", least=0, most=59, unit="m")
HOUR = Field(name="hour", least=0, most=23, unit="h")
DAY_OF_MONTH = Field(name="day of month", least=1, most=31, unit="d")
MONTH = Field(
    name="month",
    least=1,
    most=12,
    names=("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
DAY_OF_WEEK = Field(
    name="day of week",
    least=0,
    most=7,
    names=("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"),
    wraps=True,
)


def parts_of(text: str, field: Field) -> list[str]:
    """The parts of a list, in capitals.

    Raises:
        BadSchedule: one of them is empty.
    """
    parts = text.upper().split(",")
    if not all(parts):
        raise wrong(field, text, "has an empty part", "write numbers with one comma between")
    return parts


def numbers_of(text: str, field: Field) -> tuple[int, ...]:
    """All numbers that the field matches, in order.

    Raises:
        BadSchedule: it is not a list of numbers, names, ranges and steps.
    """
    return tuple(
        sorted({number for part in parts_of(text, field) for number in span_of(part, field)})
    )


def span_of(part: str, field: Field) -> range:
    """The numbers of one part: ``*``, ``5``, ``1-5``, each with ``/step`` or without.

    A range that wraps goes on above the last number: 5-1 are 5, 6, 7 and 8.

    Raises:
        BadSchedule: it is none of these.
    """
    body, slash, step = part.partition("/")
    begin, dash, end = body.partition("-")
    if body == "*":
        first, last = field.least, field.most
    elif dash:
        first, last = number_of(begin, field), number_of(end, field)
        if last < first:
            first, last = _turned(first, last, part, field)
    else:
        first = number_of(body, field)
        last = field.most if slash else first
    return range(first, last + 1, _step_of(step, part, field) if slash else 1)


def number_of(text: str, field: Field) -> int:
    """One number, or its name.

    Raises:
        BadSchedule: it is neither, or outside the range of the field.
    """
    if text in field.names:
        return field.names.index(text) + field.least
    if is_number(text) and field.least <= int(text) <= field.most:
        return int(text)
    raise wrong(field, text, f"is not one of {field.range}", _instead_of(text, field))


def is_number(text: str) -> bool:
    """Whether it is digits and nothing else."""
    return text.isascii() and text.isdigit()


def wrong(field: Field, text: str, why: str, write: str) -> BadSchedule:
    """The error that names the field, what is wrong with it, and what to write."""
    return BadSchedule(f"the field {field.name}, {text!r}, {why}: {write}")


def _turned(first: int, last: int, part: str, field: Field) -> tuple[int, int]:
    """A range that goes down, as one that goes up."""
    if field.wraps:
        return first, last + field.size
    begin, _, end = part.partition("/")[0].partition("-")
    most, least = (
        (field.names[-1], field.names[0])
        if begin in field.names
        else (str(field.most), str(field.least))
    )
    halves = (
        begin if begin == most else f"{begin}-{most}",
        end if end == least else f"{least}-{end}",
    )
    raise wrong(field, part, "goes down", f"write {','.join(halves)}")


def _step_of(text: str, part: str, field: Field) -> int:
    if is_number(text) and 1 <= int(text) <= field.size:
        return int(text)
    write = f"write a step of 1 to {field.size}"
    if field.unit and is_number(text) and int(text) > field.size:
        write += f", or the whole schedule as 'every {int(text)}{field.unit}'"
    raise wrong(field, part, "has a step that does not fit", write)


def _instead_of(text: str, field: Field) -> str:
    if text == "?":
        return (
            "'?' stands for a day only; write *, and check the order of the fields: the year-last "
            "lines of AWS do not fit"
        )
    if is_number(text) and len(text) == _YEAR_DIGITS:
        return "it looks like a year, which no field says here: leave it out"
    if text[:3] in field.names:
        return f"write {text[:3]}"
    if "#" in text or text.endswith(("L", "W")):
        return "L and W belong to the day of month, FRIL and FRI#3 to the day of week"
    return "check the order of the fields: [second] minute hour day-of-month month day-of-week"
