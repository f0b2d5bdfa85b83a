"""OPC UA over loopback: what a client sees, what it hears, and that it can change nothing."""

import asyncio
import json
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from asyncua import Client, ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256
from certificates import certificate
from cryptography.hazmat.primitives import serialization
from serve_rows import NOON, decided, ng

from coe.serve.bridge.opcua import OpcUaSettings
from coe.serve.bridge.opcua_server import COMPANION, NAMESPACE
from coe.serve.bridge.outbox_relay import envelope_of
from coe.serve.bridge.sinks import EventFormat, Origin, SinkFailed, StationStatus
from coe.serve.database import event_log
from coe.serve.database.recipe_versions import KeptRecipes
from coe.serve.enums import Intake, LineState

AOI = Origin("aoi-1")
WAITING = StationStatus(LineState.WAITING, Intake.OPEN, (), NOON)


@contextmanager
def connected(**settings):
    with closing(OpcUaSettings(port=0, **settings).connection(AOI)) as sink:
        sink.connect()
        yield sink


@pytest.fixture(scope="module")
def sink():
    with connected() as sink:
        yield sink


@pytest.mark.slow
def test_a_start_puts_no_warning_into_the_log(capsys):
    with connected():
        pass
    assert capsys.readouterr().err == ""


def decided_board(database, key="k1"):
    with database.writing() as connection:
        board = decided(connection, key, ng())
        event = event_log.after(connection, 0, board_id=board.id)[-1]
        return EventFormat(AOI).messages(envelope_of(connection, event, KeptRecipes()))[0]


async def node(client, *path):
    index = await client.get_namespace_index(NAMESPACE)
    return await client.nodes.objects.get_child([f"{index}:{part}" for part in ("VisionSystem", *path)])


class Hears:
    def __init__(self):
        self.events = asyncio.Queue()

    def event_notification(self, event):
        self.events.put_nowait(event)


async def hears_one(client, sink, message):
    index = await client.get_namespace_index(NAMESPACE)
    kind = await client.nodes.base_event_type.get_child([*await companion(client), f"{index}:BoardResultReadyType"])
    both = [Hears(), Hears()]
    for hears, place in zip(both, (await node(client), client.nodes.server), strict=True):
        subscription = await client.create_subscription(20, hears)
        await subscription.subscribe_events(place, [kind])
    await asyncio.to_thread(sink.send, message)
    event, same = [await asyncio.wait_for(hears.events.get(), 20) for hears in both]
    assert event.EventId == same.EventId
    return event


async def companion(client):
    if COMPANION not in await client.get_namespace_array():
        return []
    return [f"{await client.get_namespace_index(COMPANION)}:ResultReadyEventType"]


def test_state_result_counters_and_the_event(sqlite_database, sink):
    message = decided_board(sqlite_database)

    async def look():
        async with Client(sink.url) as client:
            for line in LineState:
                await asyncio.to_thread(sink.show, replace(WAITING, line=line))
                assert await (await node(client, "VisionStateMachine", "Line")).read_value() == line.value
            await asyncio.to_thread(sink.show, WAITING)
            assert await (await node(client, "VisionStateMachine", "CurrentState")).read_value() == "Ready"
            event = await hears_one(client, sink, message)
            assert (event.ResultId, event.Verdict, event.RecipeId, event.Calls) == (message.id, "NG", "demo", 1)
            assert json.loads(event.Content) == message.body
            last = ("ResultManagement", "LastResult")
            assert await (await node(client, *last, "Serial")).read_value() == "k1"
            assert await (await node(client, *last, "CreationTime")).read_value() == event.CreationTime
            assert await (await node(client, "ResultManagement", "Counters", "NG")).read_value() == 1

    asyncio.run(look())


def test_a_client_changes_nothing_whatever_it_calls_itself(sink):
    async def try_it():
        client = Client(sink.url)
        client.set_user("admin")
        client.set_password("x")
        async with client:
            state = await node(client, "VisionStateMachine", "CurrentState")
            for change in (state.write_value("Error"), client.nodes.objects.add_folder(2, "mine"), state.delete()):
                with pytest.raises(ua.UaError):
                    await change

    asyncio.run(try_it())


_NODESET = f"""<UANodeSet xmlns="http://opcfoundation.org/UA/2011/03/UANodeSet.xsd">
  <NamespaceUris><Uri>{COMPANION}</Uri></NamespaceUris>
  <Aliases><Alias Alias="HasSubtype">i=45</Alias></Aliases>
  <UAObjectType NodeId="ns=1;i=1" BrowseName="1:ResultReadyEventType"><DisplayName>ResultReadyEventType</DisplayName>
    <References><Reference ReferenceType="HasSubtype" IsForward="false">i=2041</Reference></References></UAObjectType>
</UANodeSet>"""


@pytest.mark.slow
def test_with_the_companions_nodeset_the_event_is_of_its_type(sqlite_database, tmp_path):
    nodeset = tmp_path / "vision.xml"
    nodeset.write_text(_NODESET)

    async def look(sink):
        async with Client(sink.url) as client:
            assert await companion(client)
            assert (await hears_one(client, sink, decided_board(sqlite_database))).Verdict == "NG"

    with connected(nodeset=nodeset) as sink:
        asyncio.run(look(sink))


def test_with_certificates_only_those_who_are_listed_read_and_only_encrypted(tmp_path):
    own, friend, stranger = (certificate(tmp_path, name) for name in ("own", "friend", "stranger"))

    async def read(pair):
        client = Client(sink.url)
        if pair is not None:
            await client.set_security(SecurityPolicyBasic256Sha256, *map(str, pair), server_certificate=str(own[0]))
        async with client:
            return str(await (await node(client, "VisionStateMachine", "CurrentState")).read_value())

    with connected(certificate=own[0], private_key=own[1], clients=(friend[0],)) as sink:
        sink.show(WAITING)
        assert asyncio.run(read(friend)) == "Ready"
        for pair in (stranger, None):
            with pytest.raises((ua.UaError, ConnectionError)):
                asyncio.run(read(pair))


@pytest.mark.slow
def test_a_key_with_a_passphrase_is_told(tmp_path):
    own, key = certificate(tmp_path, "own")
    read = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(read.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(SinkFailed, match="encrypted"), connected(certificate=own, private_key=key, clients=(own,)):
        pass
