"""Secrets of a service: a file for its owner alone. A secret is made once, and never changes by itself."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

SESSIONS = "session.secret"
"""Signs the names of sessions, and proofs of overlays."""
ARCHIVE = "archive.secret"
"""Tells the index of this station from those of others in one archive."""
_BYTES = 32


def make_all(folder: Path) -> None:
    """Make the secrets of a service that are not there, so that no page needs room on the disk later.

    Raises OSError.
    """
    for name in (SESSIONS, ARCHIVE):
        read_or_make(folder / name)


def place_of(folder: Path) -> str:
    """Return a name of the data folder of a service that no other folder has; empty if its disk does not tell."""
    with suppress(OSError):
        return hashlib.sha256(read_or_make(folder / SESSIONS)).hexdigest()[:16]
    return ""


def read_or_make(path: Path) -> bytes:
    """Return a secret; whoever asks first makes it. Raises OSError."""
    with suppress(FileExistsError):
        new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        if not path.exists():
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
            try:
                os.link(new, path)  # whole or not at all, and the first one stays
            finally:
                new.unlink()
    return path.read_bytes()
