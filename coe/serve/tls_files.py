"""Certificates of ours, with their private keys, from PEM files."""

from __future__ import annotations

import ssl
from pathlib import Path

from coe.errors import ConfigError


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
