"""Certificates, ours with their private keys and those that we trust, from PEM files."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coe import config
from coe.errors import ConfigError
from coe.serve.clock import DAY_US, iso, microseconds

WARNS_BEFORE_US = 30 * DAY_US
"""How long before its end a certificate is warned of; one of a short life, as of 90 days, in its last quarter."""


@dataclass(frozen=True, slots=True)
class WatchedCertificate:
    """A certificate that a process has read; `key` is the key of the config that names its file."""

    key: str
    file: Path
    begins_us: int
    ends_us: int

    def warning(self, now_us: int) -> str:
        """Return that it is over, or will be soon; empty if it will not."""
        left_us = self.ends_us - now_us
        if left_us > min(WARNS_BEFORE_US, (self.ends_us - self.begins_us) // 4):
            return ""
        when = f"ends in {config.counted(left_us // DAY_US + 1, 'day')}," if left_us > 0 else "ended"
        told = f"{self.key}: the certificate {self.file} {when} on {iso(self.ends_us)[:10]}"
        return f"{told}; replace it, then restart the service"


def watched_certificates(section: Mapping[str, Any], key: str = "") -> Iterator[WatchedCertificate]:
    """Yield the certificates that a section names, and those in it; whoever uses an unreadable one says so.

    Of a file with several it is the first of `certificate`, a chain that begins with ours; and of those that we trust
    the last to end, because a file may hold the old and the new ones of an authority, or those of the whole world.
    """
    for name, value in section.items():
        inside = f"{key}.{name}".strip(".")
        if isinstance(value, Mapping):
            yield from watched_certificates(value, inside)
        elif name in ("certificate", "ca"):
            yield from _read(inside, value)
        elif name == "clients" and isinstance(value, tuple):  # a sink of another package may count them
            for number, file in enumerate(value, 1):
                yield from _read(f"{inside}, number {number}", file)


def _read(key: str, file: object) -> Iterator[WatchedCertificate]:
    from cryptography.x509 import load_pem_x509_certificates as load  # commands show their help without it

    if isinstance(file, Path):
        with suppress(OSError, ValueError):
            spans = [(at.not_valid_before_utc, at.not_valid_after_utc) for at in load(file.read_bytes())]
            begins, ends = spans[0] if key.endswith(".certificate") else max(spans, key=lambda span: span[1])
            yield WatchedCertificate(key, file, microseconds(begins.timestamp()), microseconds(ends.timestamp()))


def present(context: ssl.SSLContext, certificate: Path, private_key: Path, what: str) -> None:
    """Let a context present a certificate; raises ConfigError for unusable files, which `what` names.

    Nobody is there to type a passphrase, for which OpenSSL would ask.
    """
    try:
        context.load_cert_chain(certificate, private_key, password="")
    except (OSError, ValueError) as error:  # SSLError too
        raise ConfigError(
            f"{what}: {certificate}, {private_key} cannot be used for TLS: {error}; give a certificate and its own key "
            "without a passphrase, as PEM files"
        ) from None
