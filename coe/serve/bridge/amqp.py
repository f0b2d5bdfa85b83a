"""Settings of a sink that gets messages of IPC-CFX over AMQP 1.0."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coe.serve.bridge.sinks import BrokerSettings, Origin, Package, SinkConnection


class AmqpSettings(BrokerSettings):
    """An AMQP 1.0 broker, which gets messages of IPC-CFX. `node` (`address`) is where they go, as `/exchange/cfx`.

    `requests` is where other endpoints ask the station, as `/queue/aoi-1`; the answer goes where they say.
    """

    needs = Package("proton", "python-qpid-proton", "amqp")
    ports = (5672, 5671)

    node: Annotated[str, Field(min_length=1, max_length=500, alias="address")]
    requests: Annotated[str, Field(max_length=500)] = ""
    virtual_host: str = ""

    @property
    def format_name(self) -> str:
        return "cfx"

    def request_place(self, station: str) -> tuple[str, str]:
        scheme = "amqp" if self.tls is None else "amqps"
        return (f"{scheme}://{self.address}/", self.requests) if self.requests else ("", "")

    def connection(self, origin: Origin) -> SinkConnection:
        from coe.serve.bridge.amqp_connection import AmqpConnection

        return AmqpConnection(self, origin, self.node, self.requests, virtual_host=self.virtual_host)
