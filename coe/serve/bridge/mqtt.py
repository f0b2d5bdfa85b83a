"""Messages to an MQTT broker, with QoS 1. Nothing is queued here; a message without acknowledgement is sent again.

A message goes to the sink's topic and its own name, as `coe/aoi-1/board/decided`. What the station does now is retained
under `coe/aoi-1/state`; when the bridge is cut off, the broker itself says there that the station is not online.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from coe.helpers.visible import is_visible
from coe.serve.bridge import sinks
from coe.serve.clock import iso

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo

ANSWER_S = 10.0  # how long the broker may take to answer
KEEPALIVE_S = 15  # the broker publishes the last will after one and a half times this time without a sign of life
MOST_REQUESTS = 100  # of more requests that come at a time, the oldest are not answered
_SUCCESS = 0


def _topic(topic: str) -> str:
    if not is_visible(topic) or any(sign in topic for sign in "+#") or topic.startswith(("/", "$")):
        raise ValueError(f"'{topic}' is not a topic to publish under; give words separated by /")
    return topic.rstrip("/")


class MqttSettings(sinks.BrokerSettings, sinks.ChoosesFormat):
    """An MQTT broker. `topic` is what all topics begin with; `coe/STATION` if none is given."""

    needs = sinks.Package("paho", "paho-mqtt", "mqtt")
    ports = (1883, 8883)

    topic: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_topic)] | None = None

    def request_place(self, station: str) -> tuple[str, str]:
        """Return the broker, and the topic of requests; only IPC-CFX has requests."""
        if self.format_name != "cfx":
            return "", ""
        scheme = "mqtt" if self.tls is None else "mqtts"
        return f"{scheme}://{self.address}", f"{self.topic or f'coe/{station}'}/requests"

    def connection(self, origin: sinks.Origin) -> MqttConnection:
        return MqttConnection(self, origin)


class MqttConnection(sinks.SinkConnection):
    """A connection to an MQTT broker; its client is named by the station and the sink."""

    def __init__(self, settings: MqttSettings, origin: sinks.Origin) -> None:
        self._settings, self._address = settings, settings.address
        self._name = f"coe-{origin.station}-{origin.sink}"
        self._topic = settings.topic or f"coe/{origin.station}"
        self._password = settings.password_text(origin)
        self._tls = None if settings.tls is None else settings.tls.context(f"{origin.key}.tls")
        self._requests = origin.request_address
        self._came: deque[sinks.SinkRequest] = deque(maxlen=MOST_REQUESTS)
        self._client: Client | None = None
        self._answered = threading.Event()
        self._refusal = ""
        self._is_lost = False

    def connect(self) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        settings = self._settings
        client = Client(CallbackAPIVersion.VERSION2, client_id=self._name, reconnect_on_failure=False)
        client.connect_timeout = ANSWER_S
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_message = self._asked
        if settings.user:
            client.username_pw_set(settings.user, self._password)
        if self._tls is not None:
            client.tls_set_context(self._tls)
        client.will_set(self._state_topic, _encoded({"online": False}), qos=1, retain=True)
        self._client = client
        try:
            client.connect(settings.host, settings.port_number, KEEPALIVE_S)
        except (OSError, ValueError) as error:
            raise sinks.SinkFailed(f"{self._address} cannot be reached: {error}") from error
        client.loop_start()
        if not self._answered.wait(ANSWER_S):
            raise sinks.SinkFailed(f"{self._address} does not answer as an MQTT broker")
        if self._refusal:
            raise sinks.SinkFailed(f"{self._address} refuses the connection: {self._refusal}")
        if self._is_lost:  # with TLS 1.3 the broker looks at our certificate after the connection is there
            asks = "" if self._tls is None else "; it may require a client certificate"
            raise sinks.SinkFailed(f"{self._address} ended the connection before it answered{asks}")
        if self._requests:
            client.subscribe(self._requests, qos=1)

    def send(self, message: sinks.Message) -> None:
        self._publish(f"{self._topic}/{message.name.replace('.', '/')}", message.encoded, retain=False)

    def show(self, status: sinks.StationStatus) -> None:
        state = {
            "online": True,
            "line": status.line.value,
            "intake": status.intake.value,
            "faults": len(status.faults),
            "at": iso(status.at_us),
        }
        self._publish(self._state_topic, _encoded(state), retain=True)

    def look(self) -> Sequence[sinks.SinkRequest]:
        if self._is_lost:
            raise sinks.SinkFailed(f"the connection to {self._address} was lost")
        return [self._came.popleft() for _ in range(len(self._came))]

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
        return f"{self._topic}/state"

    def _publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        assert self._client is not None
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        if not _wait(info, lambda: self._is_lost, ANSWER_S):
            self.look()
            raise sinks.SinkFailed(f"{self._address} did not acknowledge a message in {ANSWER_S:g} s")

    # These run on the client's own thread.

    def _connected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if client is self._client:
            self._refusal = str(reason) if reason.is_failure else ""
            self._answered.set()

    def _asked(self, client: Client, data: Any, message: MQTTMessage) -> None:
        self._came.extend(sinks.requests_in(message.payload))

    def _disconnected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if client is self._client:
            self._is_lost = True
            self._answered.set()


def _wait(info: MQTTMessageInfo, is_lost: Any, most_s: float) -> bool:
    until_s = time.monotonic() + most_s
    while info.rc == _SUCCESS and not info.is_published():
        if is_lost() or time.monotonic() > until_s:
            return False
        info.wait_for_publish(0.1)
    return info.rc == _SUCCESS


def _encoded(state: Mapping[str, Any]) -> bytes:
    return json.dumps(state).encode()
