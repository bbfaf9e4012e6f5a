"""The command line: one file per noun, data on stdout and all else on stderr."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Everything is imported here, so that a typo answers quickly."""
    from leasehold.cli.app import run  # noqa: PLC0415

    run()
