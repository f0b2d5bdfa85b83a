"""Writing the profile of a machine, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from coe.errors import ConfigError
from coe.helpers.files import is_other, write_atomically
from coe.inspector.profile import Profile


def writable(path: Path) -> None:
    """Make the folder of a profile; raises ConfigError if the profile cannot be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be created: {error.strerror}; name another place with --out") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written; name another place with --out")
    if is_other(path, b"{"):
        raise ConfigError(f"{path} is not a profile, and would be overwritten; move it, or give another --out")


def save(profile: Profile, path: Path) -> None:
    """Write a profile, whole or not at all; raises NotWritten."""
    writable(path)
    write_atomically(path, [profile.model_dump_json(indent=1) + "\n"])
