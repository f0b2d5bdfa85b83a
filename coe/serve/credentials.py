"""Secrets and certificates of a service: files for their owner alone."""

from __future__ import annotations

import hashlib
import os
import secrets
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coe import config
from coe.errors import ConfigError
from coe.serve.clock import DAY_US, iso, moment_us

SESSIONS = "session.secret"  # signs the names of sessions, and proofs of overlays
ARCHIVE = "archive.secret"  # tells the index of this station from those of others in one archive
_BYTES = 32


def make_all(folder: Path) -> None:
    """Make the secrets of a service that are missing, while the disk has room for them; raises OSError."""
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


# Certificates, ours with their private keys and those that we trust, from PEM files
WARNS_BEFORE_US = 30 * DAY_US  # before its end; a certificate of a short life in its last quarter
_NAMES = ("certificate", "ca", "clients")


@dataclass(frozen=True, slots=True)
class WatchedCertificate:
    """A certificate that a process has read; `key` is the key of the config that names its file."""

    key: str
    file: Path
    begins_us: int
    ends_us: int

    def warning(self, now_us: int) -> str:
        """Return that it is over, will be soon, or has not begun, as where the clock is wrong; empty if it is good."""
        told, left_us = f"{self.key}: the certificate {self.file}", self.ends_us - now_us
        if now_us < self.begins_us:
            return f"{told} begins on {iso(self.begins_us)[:10]}; check the clock, or replace it"
        if left_us > min(WARNS_BEFORE_US, (self.ends_us - self.begins_us) // 4):
            return ""
        when = f"ends in {config.counted(left_us // DAY_US + 1, 'day')}," if left_us > 0 else "ended"
        return f"{told} {when} on {iso(self.ends_us)[:10]}; replace it"


def _files(section: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Path]]:
    for name, value in section.items():
        inside = f"{key}.{name}".strip(".")
        if isinstance(value, Mapping):
            yield from _files(value, inside)
        elif name == "clients" and isinstance(value, tuple):  # a sink of another package may count them
            yield from _files({f"{name}, number {number}": file for number, file in enumerate(value, 1)}, key)
        elif isinstance(value, Path) and name.split(",")[0] in _NAMES:
            yield inside, value


def certificates_of(section: Mapping[str, Any]) -> Iterator[WatchedCertificate]:
    """Yield the certificates that a section of a config names; whoever uses an unreadable one says so.

    Of a file with several it is the first of `certificate`, a chain that begins with ours; those that we trust count
    together, because a file may hold the old and the new ones of an authority, or those of the whole world.
    """
    from cryptography.x509 import load_pem_x509_certificates as load  # commands show their help without it

    for key, file in _files(section):
        with suppress(OSError, ValueError):
            held = load(file.read_bytes())[: 1 if key.endswith(".certificate") else None]
            begins = min(one.not_valid_before_utc for one in held)
            ends = max(one.not_valid_after_utc for one in held)
            yield WatchedCertificate(key, file, moment_us(begins), moment_us(ends))


def present(context: ssl.SSLContext, certificate: Path, private_key: Path, what: str) -> None:
    """Let a context present a certificate; raises ConfigError for unusable files, also for a key with a passphrase."""
    for file in (certificate, private_key):
        try:
            file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{what}: {file} cannot be used for TLS: {error.strerror}") from None
    try:
        context.load_cert_chain(certificate, private_key, password="")
    except (OSError, ValueError) as error:  # SSLError too
        reason = getattr(error, "reason", None)  # it has none for a file that is not what it should be
        why = f": {reason.lower().replace('_', ' ')}" if reason else ""
        raise ConfigError(
            f"{what}: {certificate}, {private_key} cannot be used for TLS{why}; give a certificate and its own "
            "key without a passphrase, as PEM files"
        ) from None
