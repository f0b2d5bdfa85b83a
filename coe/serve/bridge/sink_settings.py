"""What settings of sinks have in common: hosts, secrets, certificates, brokers. A setting never holds a secret.

It says where the secret lies; the bridge reads the secret when it starts.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator

from coe import regular
from coe.errors import ConfigError
from coe.serve.bridge.sinks import Origin, SinkSettings
from coe.serve.tls_files import present
from coe.strict_model import StrictModel

MAX_SECRET_BYTES = 4096


def _host(host: str) -> str:
    if not host or any(letter.isspace() or letter in "/@?#" for letter in host):
        raise ValueError(f"'{host}' is not a host; give a name or an address alone, and the port as `port`")
    return host.lower()


Host = Annotated[str, Field(max_length=253), AfterValidator(_host)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Secret(StrictModel):
    """Where a password or key lies: in a file, whose last line break does not count, or in an environment variable."""

    file: Path | None = None
    environment: str | None = None

    @model_validator(mode="after")
    def _is_somewhere(self) -> Secret:
        if (self.file is None) == (self.environment is None):
            raise ValueError("say where the secret lies: either `file`, or the name of a variable as `environment`")
        return self

    def read(self, what: str) -> str:
        """Return the secret; `what` names it for messages. Raises ConfigError that does not show it."""
        if self.environment is not None:
            secret = os.environ.get(self.environment, "")
            if not secret:
                raise ConfigError(f"{what}: the environment variable {self.environment} is not set")
            return secret
        assert self.file is not None
        try:
            with regular.opened(self.file) as number:
                secret = os.read(number, MAX_SECRET_BYTES).decode().removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"{what}: {self.file} cannot be read: {why}") from None
        if not secret:
            raise ConfigError(f"{what}: {self.file} is empty")
        return secret


class Tls(StrictModel):
    """An encrypted connection. `ca` is a PEM file of those who are trusted, else the system's; the others are ours."""

    ca: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Tls:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("a certificate of ours needs both, `certificate` and `private_key`")
        return self

    def context(self, what: str) -> ssl.SSLContext:
        """Return the settings of a connection, which checks the other side's certificate; `what` names it for messages.

        Raises ConfigError for unusable files.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # SSLError too
            file = self.ca or "the system certificates"
            raise ConfigError(f"{what}: {file} cannot be used for TLS: {error}") from None
        if self.certificate is not None and self.private_key is not None:
            present(context, self.certificate, self.private_key, what)
        return context


class BrokerSettings(SinkSettings):
    """A broker. `port` is the protocol's own if none is given: the first of `ports`, or with TLS the second."""

    ports: ClassVar[tuple[int, int]]

    host: Host
    port: Port | None = None
    user: str = ""
    password: Secret | None = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _has_user(self) -> BrokerSettings:
        if self.password is not None and not self.user:
            raise ValueError("a password needs a `user`")
        return self

    @property
    def port_number(self) -> int:
        """The port."""
        return self.port or self.ports[self.tls is not None]

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port_number}"

    def password_text(self, origin: Origin) -> str | None:
        """Return the password; raises ConfigError that does not show it."""
        return None if self.password is None else self.password.read(f"{origin.key}.password")
