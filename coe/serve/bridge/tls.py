"""Encrypted connections of the bridge. Law: the other side's certificate is always checked."""

from __future__ import annotations

import ssl

from coe.errors import ConfigError
from coe.serve.sink_config import Tls


def context_of(tls: Tls, what: str) -> ssl.SSLContext:
    """Return the settings of a connection; `what` names it for messages. Raises ConfigError for unusable files."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.private_key)
    except OSError as error:  # SSLError too
        files = ", ".join(str(file) for file in (tls.ca, tls.certificate, tls.private_key) if file)
        raise ConfigError(f"{what}: {files or 'the system certificates'} cannot be used for TLS: {error}") from None
    return context
