"""Secrets of a service: a file for its owner alone. A secret is made once, and never changes by itself."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_BYTES = 32


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
