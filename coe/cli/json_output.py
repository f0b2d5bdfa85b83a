"""The option `--json`: figures as JSON, into a file or to standard output."""

from __future__ import annotations

import sys
from pathlib import Path

from coe.errors import ConfigError
from coe.files import why_not

STANDARD_OUTPUT = "-"


def check_json(where: str | None) -> None:
    """Check before a long run that its rows can be written; raises ConfigError."""
    if where is None or where == STANDARD_OUTPUT:
        return
    if reason := why_not(Path(where)):
        raise ConfigError(f"--json: {where} {reason}; name a file, or - for standard output")


def write_json(text: str, where: str | None) -> None:
    """Write JSON to a file, to standard output with "-", or nowhere; raises ConfigError."""
    if where == STANDARD_OUTPUT:
        sys.stdout.write(text)
    elif where is not None:
        try:
            Path(where).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json: {where} cannot be written: {error.strerror or error}") from error
