"""Certificates of ours, with their private keys, from PEM files."""

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
class OwnCertificate:
    """A certificate of ours that a process has read; `key` is the section of the config that names it."""

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
        return f"{told}; renew it, then restart the service"


def own_certificates(section: Mapping[str, Any], key: str = "") -> Iterator[OwnCertificate]:
    """Yield the certificates that a section names, and those in it; whoever uses an unreadable one says so."""
    from cryptography.x509 import load_pem_x509_certificate as load  # commands show their help without it

    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from own_certificates(value, f"{key}.{name}".strip("."))
        elif name == "certificate" and isinstance(value, Path):
            with suppress(OSError, ValueError):
                found = load(value.read_bytes())  # the first of a chain is ours
                begins, ends = (
                    microseconds(at.timestamp()) for at in (found.not_valid_before_utc, found.not_valid_after_utc)
                )
                yield OwnCertificate(key, value, begins, ends)


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
