"""AMQP 1.0: against a peer made with the same library, and against a real RabbitMQ with its plugin."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed; install coe-vision[amqp]")

from bridging import bridged, is_faulty, waiting
from brokers import answers, free_port
from proton import Message as Envelope
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector
from proton.utils import BlockingConnection
from serve_rows import NOON, decided, ng
from serving import config_of
from waiting import eventually

from coe.serve.bridge.amqp import AmqpSettings
from coe.serve.bridge.sinks import Message, Origin, SinkFailed, sinks_of

pytestmark = pytest.mark.usefixtures("hasty")
HELLO = Message("5b3d5a0c-1c0e-4f57-9a53-6f2f7c1f5f0e", "CFX.Production.WorkStarted", NOON, {"MessageBody": {}})


@dataclass
class Peer:
    """A listener that takes messages, or rejects them."""

    port: int
    came: list[Envelope] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    rejects: bool = False
    stop: Callable[[], None] = lambda: None


@contextmanager
def listening(port=None):
    peer = Peer(port or free_port())
    ready = threading.Event()
    injector = EventInjector()

    class Handler(MessagingHandler):
        def __init__(self):
            super().__init__(auto_accept=False)

        def on_start(self, event):
            event.container.selectable(injector)
            self.acceptor = event.container.listen(f"127.0.0.1:{peer.port}")
            self.connections = []
            ready.set()

        def on_connection_opening(self, event):
            self.connections.append(event.connection)

        def on_link_opening(self, event):
            if event.link.is_receiver:
                peer.addresses.append(event.link.remote_target.address)
                event.link.target.address = event.link.remote_target.address

        def on_message(self, event):
            if peer.rejects:
                self.reject(event.delivery)
                return
            peer.came.append(event.message)
            self.accept(event.delivery)

        def on_stop(self, event):
            self.acceptor.close()
            for connection in self.connections:
                connection.close()
            injector.close()

    container = Container(Handler())
    thread = threading.Thread(target=container.run)
    thread.start()
    assert ready.wait(20)
    peer.stop = lambda: injector.trigger(ApplicationEvent("stop"))
    try:
        yield peer
    finally:
        peer.stop()
        thread.join(20)
        assert not thread.is_alive()


def sink_to(port, **more):
    settings = {"host": "127.0.0.1", "port": port, "address": "/exchange/cfx", **more}
    return AmqpSettings.model_validate(settings).connection(Origin("test", "acme.aoi.7"))


def test_a_message_has_the_properties_of_the_standards_sdk():
    with listening() as peer:
        sink = sink_to(peer.port)
        sink.connect()
        sink.send(HELLO)
        sink.look()
        sink.close()
    [message] = peer.came
    assert peer.addresses == ["/exchange/cfx"]
    assert json.loads(bytes(message.body)) == {"MessageBody": {}}
    assert message.inferred, "one section of bytes"
    assert (message.id, message.durable) == (HELLO.id, True)
    assert (message.reply_to, message.subject) == ("acme.aoi.7", "acme.aoi.7.CFX.Production.WorkStarted")
    assert message.content_type == 'application/json; charset="utf-8"'
    assert message.creation_time == NOON / 1_000_000
    assert message.properties == {
        "cfx-topic": "CFX.Production",
        "cfx-message": "CFX.Production.WorkStarted",
        "cfx-handle": "acme.aoi.7",
    }


def test_a_message_that_is_rejected_was_not_told():
    with listening() as peer:
        peer.rejects = True
        sink = sink_to(peer.port)
        sink.connect()
        with pytest.raises(SinkFailed, match=f"127.0.0.1:{peer.port}"):
            sink.send(HELLO)
        sink.close()


def test_a_connection_that_is_lost_is_found_out():
    with listening() as peer:
        sink = sink_to(peer.port)
        sink.connect()
        peer.stop()
        with pytest.raises(SinkFailed, match="was lost"):
            eventually(sink.look)
        with pytest.raises(SinkFailed):
            sink.send(HELLO)
        sink.close()


def test_a_broker_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("COE_TEST_PASSWORD", "hunter2")
    port = free_port()
    sink = sink_to(port, user="ann", password={"environment": "COE_TEST_PASSWORD"})
    with pytest.raises(SinkFailed, match=f"127.0.0.1:{port}") as caught:
        sink.connect()
    sink.close()
    assert "hunter2" not in str(caught.value)


def mes_told(database, folder, port, **more):
    sink = {"host": "127.0.0.1", "port": port, "address": "/exchange/cfx", **more}
    config = config_of(folder, sinks={"amqp": {"mes": sink}})
    return bridged(database, sinks_of(config.station, config.sinks))


def names(came):
    return [str(one.properties["cfx-message"]).rpartition(".")[2] for one in came]


BOARD = ["UnitsArrived", "UnitsInspected", "WorkCompleted", "UnitsDeparted"]


def test_what_happens_while_the_broker_is_down_is_told_when_it_is_back(sqlite_database, tmp_path):
    with listening() as first, mes_told(sqlite_database, tmp_path, first.port):
        sqlite_database.write(decided, "k1", ng())
        eventually(lambda: names(first.came) == ["EndpointConnected", "Heartbeat", *BOARD])
    with listening(first.port) as second, mes_told(sqlite_database, tmp_path, first.port):
        sqlite_database.write(decided, "k2")
        eventually(lambda: len(second.came) >= 4)
    assert names(first.came)[-1] == "EndpointShuttingDown" or not first.came[-1].durable
    assert [name for name in names(second.came) if name not in ("EndpointConnected", "Heartbeat")][:4] == BOARD


class Rabbit:
    """A real RabbitMQ on free ports, as the user who runs the tests."""

    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    def __init__(self, folder):
        plugins = list(Path("/usr/lib/rabbitmq/lib").glob("*/plugins/rabbitmq_amqp1_0*"))
        if not self.program.exists() or not plugins:
            pytest.skip("there is no RabbitMQ with the plugin rabbitmq_amqp1_0 here; install rabbitmq-server")
        self.port, self._folder = free_port(), folder
        (folder / "plugins").write_text("[rabbitmq_amqp1_0].")
        (folder / "rabbit.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"coe{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._epmd = None
        self._process = None

    def __enter__(self):
        # Without a mapper of its own, the server would start one that outlives it.
        epmd = shutil.which("epmd")
        self._epmd = subprocess.Popen([epmd], env=self._environment)
        self.start()
        return self

    def __exit__(self, *rest):
        self.stop()
        self._epmd.terminate()
        self._epmd.wait()

    def start(self):
        with (self._folder / "out.txt").open("ab") as out:
            self._process = subprocess.Popen(
                [str(self.program)], env=self._environment, stdout=out, stderr=out, start_new_session=True
            )
        eventually(lambda: answers(self.port), "RabbitMQ")

    def stop(self):
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None


QUEUE = "/queue/cfx"


@pytest.mark.slow
def test_a_real_rabbitmq_is_told_and_its_kill_loses_nothing(sqlite_database, tmp_path):
    (tmp_path / "rabbit").mkdir()
    with Rabbit(tmp_path / "rabbit") as rabbit:
        password = tmp_path / "password"
        password.write_text("guest")
        login = {"user": "guest", "password": {"file": str(password)}}
        with mes_told(sqlite_database, tmp_path, rabbit.port, address=QUEUE, requests="/queue/aoi-1", **login):
            sqlite_database.write(decided, "k1", ng())
            eventually(lambda: waiting(sqlite_database, "mes") == 0)
            rabbit.stop()
            sqlite_database.write(decided, "k2")
            eventually(lambda: is_faulty(sqlite_database))
            rabbit.start()
            eventually(lambda: waiting(sqlite_database, "mes") == 0 and not is_faulty(sqlite_database))
            assert [one["MessageName"] for one in asked(rabbit.port)] == ["CFX.AreYouThereResponse"]
            assert not is_faulty(sqlite_database)
        came = received(rabbit.port)
    units = [
        (one["MessageName"].rpartition(".")[2], one["MessageBody"]["Units"][0]["UnitIdentifier"])
        for one in came
        if "Units" in one["MessageBody"]
    ]
    told = ("UnitsArrived", "WorkCompleted", "UnitsDeparted")
    assert list(dict.fromkeys(units)) == [(name, key) for key in ("k1", "k2") for name in told]


def asked(port):
    """Ask the station three times: badly, for an answer where nobody can be answered, and rightly."""
    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{port}", timeout=10, allow_insecure_mechs=True)
    receiver = connection.create_receiver("/queue/answers", credit=100)
    sender = connection.create_sender("/queue/aoi-1")
    are_you_there = json.dumps({"MessageName": "CFX.AreYouThereRequest", "MessageBody": {}}).encode()
    for body, where in ((b"{", "/queue/answers"), (are_you_there, "/none/x"), (are_you_there, "/queue/answers")):
        sender.send(Envelope(body=body, inferred=True, reply_to=where, correlation_id="r7"))
    message = receiver.receive(timeout=20)
    receiver.accept()
    assert message.correlation_id == "r7"
    connection.close()
    return [json.loads(bytes(message.body))]


def received(port):
    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{port}", timeout=10, allow_insecure_mechs=True)
    receiver = connection.create_receiver(f"/amq{QUEUE}", credit=100)
    came = []
    while not came or came[-1]["MessageName"].rpartition(".")[2] != "FaultCleared":
        message = receiver.receive(timeout=10)
        receiver.accept()
        came.append(json.loads(bytes(message.body)))
    connection.close()
    return came
