"""Settings of the OPC UA server."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from coe.errors import ConfigError
from coe.serve.bridge.sinks import Address, Origin, Package, SinkConnection, SinkSettings


class OpcUaSettings(SinkSettings):
    """The OPC UA server. `nodeset` is the XML file of the companion specification OPC 40100-1, if there is one.

    Reached from other machines, it needs a certificate of its own and the certificates of those who may read.
    """

    needs = Package("asyncua", "asyncua", "opcua")
    is_single = True

    host: Address = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 4840
    nodeset: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    clients: tuple[Path, ...] = ()

    @model_validator(mode="after")
    def _is_guarded(self) -> OpcUaSettings:
        guards = (self.certificate, self.private_key, self.clients)
        if any(guards) != all(guards):
            raise ValueError("give all three, `certificate`, `private_key` and `clients`, or none of them")
        if not ipaddress.ip_address(self.host).is_loopback and not all(guards):
            raise ValueError(
                f"{self.host} is reached from other machines; give `certificate`, `private_key`, and the clients' "
                "certificates in `clients`"
            )
        return self

    def connection(self, origin: Origin) -> SinkConnection:
        from coe.serve.bridge.opcua_server import OpcUaConnection

        for file in (self.nodeset, self.certificate, self.private_key, *self.clients):
            if file is not None and not file.is_file():
                raise ConfigError(f"{origin.key}: there is no file {file}")
        return OpcUaConnection(self, origin)
