"""MQTT with a real broker: topics, the retained state, the last will, and restarts that lose nothing."""

import gc
import json
import signal
import subprocess
import sys
from contextlib import closing

import paho.mqtt.publish
import pytest
from bridging import RELAY, append, bridged, is_faulty
from brokers import Mosquitto, answers, free_port, hearing
from certificates import Authority
from serve_rows import NOON, decided, ng
from serving import config_of
from waiting import eventually

from coe.serve.bridge.mqtt import MqttConnection, MqttSettings
from coe.serve.bridge.sinks import Message, Origin, SinkFailed, Tls, sinks_of
from coe.serve.database import event_log


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


pytestmark = pytest.mark.usefixtures("hasty")


def sink_to(port, topic="coe/a", **more):
    settings = {"host": "127.0.0.1", "port": port, "topic": topic, **more}
    return MqttConnection(MqttSettings.model_validate(settings), Origin("c1"))


def plant_told(database, folder, **sink):
    config = config_of(folder, sinks={"mqtt": {"plant": {"host": "localhost", **sink}}})
    return bridged(database, sinks_of(config.station, config.sinks))


def test_events_and_the_retained_state_have_their_topics(sqlite_database, broker, tmp_path):
    with hearing(broker.port) as hearer:
        with plant_told(sqlite_database, tmp_path, port=broker.port):
            append(sqlite_database, 7)
            eventually(lambda: hearer.bodies("coe/test/recipe/staged"))
            [message] = hearer.bodies("coe/test/recipe/staged")
            assert (message["kind"], message["body"]) == ("recipe.staged", {"n": 7})
            assert hearer.bodies("coe/test/state")[0]["online"] is True
            with hearing(broker.port, "coe/test/state") as late:
                eventually(lambda: late.heard)
                _, state, retained = late.heard[0]
                assert (state["line"], state["intake"], state["faults"], retained) == ("down", "open", 0, True)
        eventually(lambda: hearer.bodies("coe/test/state")[-1] == {"online": False})


def test_messages_of_ipc_cfx_have_their_topics_too(sqlite_database, broker, tmp_path):
    with (
        hearing(broker.port, "line-1/CFX/#") as hearer,
        plant_told(sqlite_database, tmp_path, port=broker.port, topic="line-1", format="cfx"),
    ):
        sqlite_database.write(decided, "k1", ng())
        eventually(lambda: hearer.bodies("line-1/CFX/Production/WorkCompleted"))
        [inspected] = hearer.bodies("line-1/CFX/Production/TestAndInspection/UnitsInspected")
        [beat] = hearer.bodies("line-1/CFX/Heartbeat")
        [come] = hearer.bodies("line-1/CFX/EndpointConnected")
        where = come["MessageBody"]["RequestTargetAddress"]
        asked = json.dumps({"MessageName": "CFX.AreYouThereRequest", "RequestID": "r7", "MessageBody": {}})
        for content in ("{", asked):
            paho.mqtt.publish.single(where, content, qos=1, hostname="127.0.0.1", port=broker.port)
        eventually(lambda: hearer.bodies("line-1/CFX/AreYouThereResponse"))
        assert hearer.bodies("line-1/CFX/AreYouThereResponse")[0]["RequestID"] == "r7"
    eventually(lambda: hearer.bodies("line-1/CFX/EndpointShuttingDown"))
    assert inspected["MessageBody"]["InspectedUnits"][0]["OverallResult"] == "Failed"
    assert (beat["Source"], beat["MessageBody"]["HeartbeatFrequency"]) == ("test", "00:01:00")


def test_a_station_that_is_cut_off_is_not_online_by_the_brokers_word(broker):
    sinks = closing(sink_to(broker.port)), closing(sink_to(broker.port, "coe/b"))
    with sinks[0] as sink, sinks[1] as other, hearing(broker.port, "coe/a/state") as hearer:
        sink.connect()
        other.connect()  # a second client of the same name: the broker cuts the first one off
        eventually(lambda: hearer.bodies("coe/a/state") == [{"online": False}])
        with pytest.raises(SinkFailed, match="was lost"):
            eventually(sink.look)
        with pytest.raises(SinkFailed):
            sink.send(Message("1", "x", NOON, {}))


def test_a_broker_that_restarts_in_mid_stream_loses_nothing(sqlite_database, broker, tmp_path):
    def heard():
        return [message["body"]["n"] for message in hearer.bodies("coe/test/recipe/staged")]

    with hearing(broker.port) as hearer, plant_told(sqlite_database, tmp_path, port=broker.port):
        for number in range(120):
            append(sqlite_database, number)
            if number == 40:
                eventually(lambda: len(heard()) > 10)
                broker.stop()
            if number == 80:
                eventually(lambda: is_faulty(sqlite_database))
                broker.start()
        eventually(lambda: set(heard()) == set(range(120)))
        eventually(lambda: not is_faulty(sqlite_database))
    # A repetition is allowed; a message that comes after a later one for the first time is not.
    assert list(dict.fromkeys(heard())) == list(range(120))
    ids = {message["body"]["n"]: message["id"] for message in hearer.bodies("coe/test/recipe/staged")}
    assert all(ids[message["body"]["n"]] == message["id"] for message in hearer.bodies("coe/test/recipe/staged"))


_DIES = """
import os, signal
from coe.serve import failpoints
passed = []
def die(point):
    passed.append(point)
    if len(passed) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.hook = die
"""


def test_a_bridge_that_is_killed_repeats_what_it_had_not_noted_with_the_same_ids(sqlite_database, broker, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(f"station: test\ndata: .\nsinks: {{mqtt: {{plant: {{host: localhost, port: {broker.port}}}}}}}\n")
    sqlite_database.write(event_log.register_sinks, ["plant"], NOON)
    for number in range(5):
        append(sqlite_database, number)
    with hearing(broker.port, "coe/test/#") as hearer:
        # Its standard input stays open: the end of that would end it in order.
        with subprocess.Popen([sys.executable, "-c", _DIES + RELAY, str(file)], stdin=subprocess.PIPE) as died:
            assert died.wait(60) == -signal.SIGKILL
        eventually(lambda: len(hearer.bodies("coe/test/recipe/staged")) == 3)
        with plant_told(sqlite_database, tmp_path, port=broker.port):
            eventually(lambda: len(hearer.bodies("coe/test/recipe/staged")) == 8)
        heard = hearer.bodies("coe/test/recipe/staged")
    assert [message["body"]["n"] for message in heard] == [0, 1, 2, 0, 1, 2, 3, 4]
    assert len({message["id"] for message in heard}) == 5


def refusal(broker, host="127.0.0.1", **more):
    with closing(sink_to(broker.port, host=host, **more)) as sink, pytest.raises(SinkFailed) as caught:
        sink.connect()
    return str(caught.value)


def test_a_wrong_password_is_said_and_never_shown_and_a_broker_that_is_not_there_is_named(tmp_path):
    (tmp_path / "users").write_text("ann:$7$101$aaaa$bbbb\n")
    broker = Mosquitto(tmp_path, "allow_anonymous false", f"password_file {tmp_path}/users")
    broker.start()
    (tmp_path / "password").write_text("hunter2\n")
    assert "Not authorized" in (said := refusal(broker, user="ann", password={"file": tmp_path / "password"}))
    assert "hunter2" not in said
    broker.stop()
    assert f"127.0.0.1:{broker.port}" in refusal(broker)


@pytest.fixture
def plant(tmp_path):
    return Authority(tmp_path, "plant")


@pytest.fixture
def encrypted(tmp_path, plant):
    """A broker that asks for certificates, and its port for clients without."""
    certificate, private = plant.certificate("broker")
    open_port = free_port()
    files = f"cafile {plant.path}", f"certfile {certificate}", f"keyfile {private}"
    broker = Mosquitto(tmp_path, *files, "require_certificate true", f"listener {open_port} 127.0.0.1")
    broker.start()
    eventually(lambda: answers(open_port), "the broker")
    yield broker, open_port
    broker.stop()


def test_a_broker_is_told_over_tls_with_certificates_of_the_plants_own_authority(
    sqlite_database, encrypted, plant, tmp_path
):
    broker, open_port = encrypted
    certificate, private = plant.certificate("station")
    tls = {"ca": str(plant.path), "certificate": str(certificate), "private_key": str(private)}
    with hearing(open_port) as hearer, plant_told(sqlite_database, tmp_path, port=broker.port, tls=tls):
        append(sqlite_database, 7)
        eventually(lambda: hearer.bodies("coe/test/recipe/staged"))


# paho leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_of_another_authority_or_name_and_a_station_without_certificate_are_refused(
    encrypted, plant, tmp_path
):
    broker, _ = encrypted
    certificate, private = plant.certificate("station")
    stranger = Authority(tmp_path, "stranger")

    ours = {"certificate": certificate, "private_key": private}
    assert "certificate verify failed" in refusal(broker, "localhost", tls=Tls(ca=stranger.path, **ours))
    assert "IP address mismatch" in refusal(broker, tls=Tls(ca=plant.path, **ours))
    assert "it may require a client certificate" in refusal(broker, "localhost", tls=Tls(ca=plant.path))
    gc.collect()  # else another test is told
