"""Who can reach a service. What other machines reach has TLS and keys, or does not start."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from coe.errors import ConfigError
from coe.serve.clock import now_us
from coe.serve.credentials import present

if TYPE_CHECKING:
    from coe.serve.database.connecting import Database
    from coe.serve.service_config import Listen, ServeConfig


def expect_keys(config: ServeConfig, database: Database) -> None:
    """Raise ConfigError if other machines reach the service, and it has no valid key; `load` has asked for TLS."""
    from coe.serve.database import keys

    if not config.listen.is_loopback and not database.read(keys.any_valid, now_us()):
        raise ConfigError(
            f"{config.listen.host} is reached from other machines, and there is no valid key; make one with "
            "`coe-serve add-key`"
        )


def expect_place(listen: Listen) -> None:
    """Raise ConfigError if nothing can listen as the config says: another program does, or a certificate is wrong."""
    if listen.certificate is not None and listen.private_key is not None:
        present(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), listen.certificate, listen.private_key, "listen")
    with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
        except OSError as error:
            raise ConfigError(
                f"nothing can listen at {listen.host}, port {listen.port}: {error.strerror or error}; end the program "
                "that has it, or give another `listen.port`"
            ) from None
