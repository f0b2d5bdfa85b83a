"""Messages to an MQTT broker, with QoS 1. Law: nothing is queued here; a message without acknowledgement is sent again.

A message goes to the sink's topic and its own name, as `coe/aoi-1/board/decided`. What the station does now is retained
under `coe/aoi-1/state`; when the bridge is cut off, the broker itself says there that the station is not online.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from coe.serve.bridge.sinks import Message, SinkFailed, StationStatus
from coe.serve.clock import iso

ANSWER_S = 10.0
"""How long the broker may take to answer."""
KEEPALIVE_S = 15
"""The broker publishes the last will after one and a half times this time without a sign of life."""


@dataclass(frozen=True, slots=True)
class MqttPlace:
    """The address of a broker, the user, and the topic under which messages are published."""

    host: str
    port: int
    client: str
    topic: str
    user: str = ""
    password: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<MqttPlace {self.host}:{self.port} {self.topic}>"


class MqttConnection:
    """A connection to an MQTT broker."""

    def __init__(self, place: MqttPlace) -> None:
        self._place = place
        self._client: Client | None = None
        self._answered = threading.Event()
        self._refusal = ""
        self._is_lost = False

    def connect(self) -> None:
        """Connect, with the last will; raises SinkFailed."""
        place = self._place
        client = Client(CallbackAPIVersion.VERSION2, client_id=place.client, reconnect_on_failure=False)
        client.connect_timeout = ANSWER_S
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        if place.user:
            client.username_pw_set(place.user, place.password)
        if place.tls is not None:
            client.tls_set_context(place.tls)
        client.will_set(self._state_topic, _encoded({"online": False}), qos=1, retain=True)
        self._answered.clear()
        self._refusal, self._is_lost = "", False
        self._client = client
        try:
            client.connect(place.host, place.port, KEEPALIVE_S)
        except (OSError, ValueError) as error:
            raise SinkFailed(f"{place.host}:{place.port} cannot be reached: {error}") from error
        client.loop_start()
        if not self._answered.wait(ANSWER_S):
            raise SinkFailed(f"{place.host}:{place.port} does not answer as an MQTT broker")
        if self._refusal:
            raise SinkFailed(f"{place.host}:{place.port} refuses the connection: {self._refusal}")
        if self._is_lost:  # with TLS 1.3 the broker looks at our certificate after the connection is there
            asks = "" if place.tls is None else "; it may ask for a certificate that it knows"
            raise SinkFailed(f"{place.host}:{place.port} ended the connection before it answered{asks}")

    def send(self, message: Message) -> None:
        """Publish under the sink's topic and the message's name; raises SinkFailed."""
        self._publish(f"{self._place.topic}/{message.name.replace('.', '/')}", message.encoded, retain=False)

    def show(self, status: StationStatus) -> None:
        """Retain what the station does now; raises SinkFailed."""
        state = {
            "online": True,
            "line": status.line.value,
            "intake": status.intake.value,
            "faults": len(status.faults),
            "at": iso(status.at_us),
        }
        self._publish(self._state_topic, _encoded(state), retain=True)

    def look(self) -> None:
        """Raise SinkFailed if the connection is lost."""
        if self._is_lost:
            raise SinkFailed(f"the connection to {self._place.host}:{self._place.port} was lost")

    def close(self) -> None:
        """Say that the station is not online any more, and disconnect."""
        client, self._client = self._client, None
        if client is None:
            return
        if client.is_connected():
            # A broker publishes no last will for a client that disconnects in order.
            info = client.publish(self._state_topic, _encoded({"online": False}), qos=1, retain=True)
            _wait(info, lambda: self._is_lost, 1.0)
        client.disconnect()
        client.loop_stop()

    @property
    def _state_topic(self) -> str:
        return f"{self._place.topic}/state"

    def _publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        assert self._client is not None
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        if not _wait(info, lambda: self._is_lost, ANSWER_S):
            self.look()
            raise SinkFailed(f"{self._place.host}:{self._place.port} did not acknowledge a message in {ANSWER_S:g} s")

    # These run on the client's own thread.

    def _connected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if client is self._client:
            self._refusal = str(reason) if reason.is_failure else ""
            self._answered.set()

    def _disconnected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if client is self._client:
            self._is_lost = True
            self._answered.set()


def _wait(info: MQTTMessageInfo, is_lost: Any, most_s: float) -> bool:
    """Wait for the acknowledgement of a message; return whether it came."""
    until_s = time.monotonic() + most_s
    while info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS and not info.is_published():
        if is_lost() or time.monotonic() > until_s:
            return False
        info.wait_for_publish(0.1)
    return info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS


def _encoded(state: Mapping[str, Any]) -> bytes:
    return json.dumps(state).encode()
