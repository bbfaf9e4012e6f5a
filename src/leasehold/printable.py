r"""Text of other parties, made printable: what a terminal or a log shows of it is only text.

Names, notes, errors and events may hold escape sequences that move a cursor, change colours or
hide what follows. ``printable`` shows such characters as escapes: ``\x1b``, ``\u202e``.
"""

from __future__ import annotations

import json
import logging
import re
import traceback

# All loggers of Leasehold: what they log is made printable before any handler sees it.
LOGGERS = (
    "azure",
    "azure.endpoint",
    "azure_blob",
    "eventhubs",
    "events",
    "files",
    "jobs",
    "log",
    "member",
    "processor",
    "spark",
)
_ASTRAL = 0x10000
# A fast first look. ``str.isprintable`` judges each of these; it knows more than any pattern.
_SUSPECT = re.compile(r"[^ -~]")


def printable(text: str, *, keep: str = "") -> str:
    r"""Return ``text`` with each character that is not printable as an escape, such as ``\x1b``.

    Control characters, C1, changes of writing direction, invisible characters and lone surrogates
    are not printable; nor is a line break, unless ``keep`` has it. What is printable is unchanged.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(
        lambda match: match[0] if match[0] in keep or match[0].isprintable() else _escape(match[0]),
        text,
    )


def json_text(value: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    r"""Return JSON without raw control characters: they are ``\u001b``, so no value changes."""
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    if text.isprintable():
        return text
    return _SUSPECT.sub(
        lambda match: match[0] if match[0] == "\n" or match[0].isprintable() else _unit(match[0]),
        text,
    )


class PrintableRecords(logging.Filter):
    """Makes what is logged printable: the message, its arguments and the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record only if it holds what is not printable; let every record pass."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_argument, record.args))
        raised = record.exc_info[1] if record.exc_info else None
        if raised is not None and not record.exc_text:
            trace = "".join(traceback.format_exception(raised)).rstrip("\n")
            shown = printable(trace, keep="\n")
            # A formatter takes the text that is there; it makes its own of a plain traceback.
            record.exc_text = shown if shown != trace else None
        return True


def install_log_filter() -> None:
    """Let all loggers of Leasehold log printable text; harmless if called again."""
    for name in LOGGERS:
        logger = logging.getLogger(f"leasehold.{name}")
        if not any(isinstance(each, PrintableRecords) for each in logger.filters):
            logger.addFilter(PrintableRecords())


def _argument(value: object) -> object:
    if not isinstance(value, str | BaseException):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - logging reports it
        return value
    shown = printable(text)
    return value if shown == text else shown


def _escape(character: str) -> str:
    return ascii(character)[1:-1]


def _unit(character: str) -> str:
    """Return the character as JSON escapes it: in one unit of UTF-16, or two."""
    code = ord(character)
    if code < _ASTRAL:
        return f"\\u{code:04x}"
    code -= _ASTRAL
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
