"""Who can reach a service. What other machines reach has TLS and keys, or does not start."""

from __future__ import annotations

from coe.errors import ConfigError
from coe.serve.clock import now_us
from coe.serve.database import keys
from coe.serve.database.connecting import Database
from coe.serve.service_config import ServeConfig


def expect_keys(config: ServeConfig, database: Database) -> None:
    """Raise ConfigError if other machines reach the service, and it has no valid key; `load` has asked for TLS."""
    with database.reading() as connection:
        if not config.listen.is_loopback and not keys.any_valid(connection, now_us()):
            raise ConfigError(
                f"{config.listen.host} is reached from other machines, and there is no valid key; make one with "
                "`coe-serve add-key`"
            )
