"""Foreign text made safe to show: a terminal obeys nothing in it, and nothing in it is hidden.

Names of files, folders, boards and serials come from outside. A control character in a name could move the cursor,
change the title of the window or forge a line, and characters that reverse a text could make it look like another name.
"""

from __future__ import annotations

import re

_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
"""Control characters, line separators, spaces of no width, characters that reverse text, and surrogates, which no
encoding can hold."""
_ALL = re.compile(f"[{_HIDDEN}]")
_ALL_BUT_NEWLINE = re.compile(f"(?!\n)[{_HIDDEN}]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text in which each hidden character is an escape such as `\x1b`; with `lines`, line ends stay.

    A byte of a file's name that is not UTF-8 (Python holds it as U+DC80 to U+DCFF) is shown as that byte.
    """
    return (_ALL_BUT_NEWLINE if lines else _ALL).sub(_escape, text)


def is_visible(text: str) -> bool:
    """Return whether a text has no hidden characters other than line ends."""
    return _ALL_BUT_NEWLINE.search(text) is None


def _escape(character: re.Match[str]) -> str:
    code = ord(character[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
