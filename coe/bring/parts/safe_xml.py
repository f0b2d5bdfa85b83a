"""XML of other programs, without document types that define something, which can grow without bounds."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections import deque
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from coe.errors import ConfigError

_MOST = 4_000_000
"""So many tags are more than 64 MB of a CAD program hold, and their elements take some 400 MB."""


def parse(path: Path, raw: bytes, noun: str) -> xml.Element:
    """Return the root of a file's bytes; raises ConfigError, which calls it `noun`, if it cannot be read."""
    return deque(elements(path, raw, noun), 1).pop()


def elements(path: Path, raw: bytes, noun: str) -> Iterator[xml.Element]:
    """Yield the elements of a file's bytes as they end, so that who has read one may clear it; the root is the last.

    Raises ConfigError, which calls the file `noun`, if it cannot be read.
    """
    if b"<!ENTITY" in raw or re.search(rb"<!DOCTYPE[^>]*\[", raw):
        raise ConfigError(f"{path}: a document type has no place in {noun}; export it again")
    if raw.count(b"<") > _MOST:
        raise ConfigError(f"{path}: it has more than {_MOST:,} tags; export {noun} with less in it")
    try:
        for _, element in xml.iterparse(BytesIO(raw)):
            yield element
    except (xml.ParseError, ValueError, LookupError) as error:
        raise ConfigError(f"{path}: is not XML that can be read ({error}); export it again") from None
