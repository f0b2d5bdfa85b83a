"""A real MQTT broker on a free port, which can be stopped and started again, and a client that hears everything."""

import json
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from waiting import PATIENCE_S, eventually


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port):
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


class Mosquitto:
    """A broker that keeps what it has acknowledged over a restart."""

    def __init__(self, folder, *settings):
        found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
        if found is None:
            pytest.skip("there is no mosquitto here; install Debian's package of that name")
        self._program = found
        self.port = free_port()
        self._config = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true", "user root"]
        lines += [f"persistence_location {folder}/", "max_queued_messages 0", *settings]
        self._config.write_text("\n".join(lines) + "\n")
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [self._program, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(lambda: answers(self.port), "the broker")

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._process = None


class Hearer:
    """A client that hears all messages under a topic, also those that come while it is cut off."""

    def __init__(self, port, topic="#"):
        self.heard = []
        self._ready = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=f"hearer-{free_port()}", clean_session=False)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_connect = lambda client, *rest: client.subscribe(topic, qos=1)
        self._client.on_subscribe = lambda *rest: self._ready.set()
        self._client.on_message = self._hear
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._ready.wait(PATIENCE_S)

    def _hear(self, client, data, message):
        self.heard.append((message.topic, json.loads(message.payload), message.retain))

    def bodies(self, topic):
        return [body for heard, body, _ in list(self.heard) if heard == topic]

    def close(self):
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def hearing(port, topic="#"):
    hearer = Hearer(port, topic)
    try:
        yield hearer
    finally:
        hearer.close()
