"""`python -m coe.serve.teach.table_text KIND NAME`: the text of a table on standard input.

A spreadsheet or an ODB++ archive unpacks to many times its size, so this process reads it, within bounds of memory and
time, and the gate goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coe.bring.parts import odb_plus_plus
from coe.bring.parts.board_files import converter_of
from coe.bring.parts.bom import is_bom, read_bom
from coe.bring.parts.placement_header import find_header
from coe.bring.parts.text_table import SPREADSHEETS, TextLine, lines_of
from coe.bring.parts.vocabulary import COLUMNS
from coe.cli.start import Exit
from coe.errors import CoeError, ConfigError
from coe.serve.teach.teach_draft import BOM

MOST_TEXT = 8_000_000  # the bytes of text of a table: 100,000 parts and more. Pages read it again and again
MOST_S, MOST_MEMORY = 60.0, 2 << 30  # what reading a table may take: seconds, and bytes of memory


def is_packed(content: bytes) -> bool:
    """Tell whether a table unpacks to an unknown size."""
    return content.startswith(SPREADSHEETS) or converter_of(content) is odb_plus_plus.board_table


def text_of(content: bytes, name: str, kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of a table in any form and usual encoding, and notes about it; raises ConfigError."""
    if not is_packed(content) and b"\0" not in content:
        with suppress(UnicodeDecodeError):
            return content.decode("utf-8-sig"), ()

    def is_table(lines: Sequence[TextLine]) -> bool:
        return is_bom(lines) if kind == BOM else find_header(lines, COLUMNS, ("refdes", "x", "y")) is not None

    noun = "the BOM" if kind == BOM else "the placement file"
    if converter_of(content) is odb_plus_plus.board_table:
        table = odb_plus_plus.board_table(Path(name), content)
    else:
        table = lines_of(Path(name), content, noun, is_table)
    return "\n".join(line.text for line in table.lines), table.notes


def _checked(content: bytes, name: str, kind: str) -> tuple[str, tuple[str, ...]]:
    if kind == BOM:
        read_bom(Path(name), raw=content, asks=False)
    text, notes = text_of(content, name, kind)
    _expect_few(len(text.encode()), name)
    return text, notes


def _expect_few(bytes_of_text: int, name: str) -> None:
    if bytes_of_text > MOST_TEXT:
        raise ConfigError(f"{name}: it has more than {MOST_TEXT:,} bytes of text; remove what is not a table of parts")


async def taken(content: bytes, name: str, kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of an uploaded table and notes about it, read within bounds; raises ConfigError."""
    if not is_packed(content):
        _expect_few(len(content), name)
        return await asyncio.to_thread(_checked, content, name, kind)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "coe.serve.teach.table_text", kind, name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        told, fault = await asyncio.wait_for(process.communicate(content), MOST_S)
    except TimeoutError:
        raise ConfigError(f"{name}: reading it takes more than {MOST_S:.0f} s; save the table alone as CSV") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == Exit.OK:
        text, notes = json.loads(told)
        return text, tuple(notes)
    if process.returncode == Exit.USAGE:
        raise ConfigError(fault.decode("utf-8", "replace"))
    raise ConfigError(f"{name}: reading it takes more memory than {MOST_MEMORY >> 30} GB; save the table alone as CSV")


def main() -> None:
    """Read the table of standard input."""
    with suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    kind, name = sys.argv[1:]
    try:
        text, notes = _checked(sys.stdin.buffer.read(), name, kind)
    except CoeError as error:
        sys.stderr.write(str(error))
        sys.exit(Exit.USAGE)
    sys.stdout.write(json.dumps([text, notes]))


if __name__ == "__main__":
    main()
