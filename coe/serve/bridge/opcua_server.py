"""An OPC UA server that shows the station and its results. Clients read; nothing that they send changes anything.

The words are those of OPC 40100-1 (Machine Vision): a state machine, the last result, and an event `ResultReady`. The
tree is our own; with the companion's nodeset, the type of the event is a subtype of the companion's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Coroutine, Mapping
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from asyncua import ua
from asyncua.common.node import Node
from asyncua.crypto.permission_rules import User, UserRole
from asyncua.server.server import Server
from asyncua.server.user_managers import CertificateUserManager, UserManager
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError

from coe.serve.bridge.sinks import Message, Origin, SinkConnection, SinkFailed, StationStatus
from coe.serve.clock import SECOND_US
from coe.serve.enums import EventKind, LineState

NAMESPACE = "urn:coe:serve"
COMPANION = "http://opcfoundation.org/UA/MachineVision"
ANSWER_S, STARTS_S = 30.0, 600.0  # of an answer; of the start, which reads the standard's nodes
_STATES = {
    LineState.STARTING: "Preoperational",
    LineState.WAITING: "Ready",
    LineState.RUNNING: "ContinuousExecution",
    LineState.CHANGING: "Initialized",
    LineState.DRAINED: "Halted",
    LineState.HELD: "Halted",
    LineState.DOWN: "Error",
}  # states of the vision state machine of OPC 40100-1
_RESULT = {
    "ResultId": ua.VariantType.String,
    "Serial": ua.VariantType.String,
    "Verdict": ua.VariantType.String,
    "RecipeId": ua.VariantType.String,
    "RecipeVersion": ua.VariantType.Int64,
    "JobId": ua.VariantType.String,
    "Late": ua.VariantType.Boolean,
    "Components": ua.VariantType.Int64,
    "Calls": ua.VariantType.Int64,
    "CreationTime": ua.VariantType.DateTime,
    "Content": ua.VariantType.String,
}  # the fields of a result; `Content` is the whole message as JSON
_EMPTY = {
    ua.VariantType.String: "",
    ua.VariantType.Int64: 0,
    ua.VariantType.Boolean: False,
    ua.VariantType.DateTime: datetime(1970, 1, 1, tzinfo=UTC),
}
_COUNTED = ("OK", "NG", "REVIEW")

_T = TypeVar("_T")


class _Readers(UserManager):
    """Everybody may read; by default the library makes an administrator of anybody with the name `admin`."""

    def get_user(self, iserver: Any, username: Any = None, password: Any = None, certificate: Any = None) -> User:
        return User(role=UserRole.User)


class ServerSettings(Protocol):
    """What the server needs of its settings (`coe.serve.bridge.opcua.OpcUaSettings`)."""

    host: str
    port: int
    nodeset: Path | None
    certificate: Path | None
    private_key: Path | None
    clients: tuple[Path, ...]


class OpcUaConnection(SinkConnection):
    """The server, on a thread with its own event loop; with `clients`, PEM files, only they may read, and encrypted."""

    def __init__(self, settings: ServerSettings, origin: Origin) -> None:
        self._settings, self._station = settings, origin.station
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Server | None = None
        self._nodes: dict[str, Node] = {}
        self._ready: Any = None
        self.url = ""

    def connect(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coe-opcua", daemon=True)
        self._thread.start()
        try:
            self._do(self._start(), STARTS_S)
        except (OSError, UaError, ValueError, TypeError) as error:  # the last of a key with a passphrase
            raise SinkFailed(f"{self._settings.host}:{self._settings.port} cannot serve OPC UA: {error}") from error

    def send(self, message: Message) -> None:
        """Show a decided board as the last result, and tell those who listen; other events are not shown."""
        if message.name == EventKind.BOARD_DECIDED:
            self._do(self._show_result(message))

    def show(self, status: StationStatus) -> None:
        self._do(self._show_state(status))

    def close(self) -> None:
        loop, server, thread = self._loop, self._server, self._thread
        self._loop = self._server = self._thread = None
        if loop is None or thread is None:
            return
        if server is not None:
            ending = asyncio.run_coroutine_threadsafe(server.stop(), loop)
            try:
                ending.result(ANSWER_S)
            except Exception:
                logging.getLogger(__name__).exception("the OPC UA server did not stop cleanly")
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _do(self, work: Coroutine[Any, Any, _T], most_s: float = ANSWER_S) -> _T:
        assert self._loop is not None
        doing = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return doing.result(most_s)
        except TimeoutError:
            doing.cancel()
            raise SinkFailed(f"the OPC UA server did not answer in {most_s:g} s") from None

    async def _start(self) -> None:
        settings, station = self._settings, self._station
        readers: Any = _Readers()
        if settings.clients:
            readers = trusted = CertificateUserManager()
            for number, client in enumerate(settings.clients):
                await trusted.add_user(client, f"client {number}", "pem")
        server = Server(user_manager=readers)
        await server.init()
        server.set_endpoint(f"opc.tcp://{settings.host}:{settings.port}")
        server.set_server_name(f"CoE {station}")
        await server.set_application_uri(f"{NAMESPACE}:{station}")
        server.iserver.allow_remote_admin = False
        server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
        if settings.certificate is not None and settings.private_key is not None:
            server.set_security_policy([ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt])
            await server.load_certificate(settings.certificate, "pem")
            await server.load_private_key(settings.private_key, format="pem")
        if settings.nodeset is not None:
            await server.import_xml(str(settings.nodeset))
        await self._build(server)
        # It warns, in the station's log, of passwords in plain text: none is asked for.
        logging.getLogger("asyncua.server.server").setLevel(logging.ERROR)
        await server.start()
        self._server = server
        listening: Any = server.bserver
        port = settings.port or listening._server.sockets[0].getsockname()[1]
        self.url = f"opc.tcp://{settings.host}:{port}"

    async def _build(self, server: Server) -> None:
        """Make the tree, in which every node can only be read."""
        index = await server.register_namespace(NAMESPACE)
        system = await server.nodes.objects.add_object(index, "VisionSystem")
        machine = await system.add_object(index, "VisionStateMachine")
        results = await system.add_object(index, "ResultManagement")
        last = await results.add_object(index, "LastResult")
        counters = await results.add_object(index, "Counters")
        texts = ("CurrentState", "Line", "Intake")
        self._nodes = {name: await machine.add_variable(index, name, "") for name in texts}
        self._nodes["OpenFaults"] = await system.add_variable(index, "OpenFaults", 0, ua.VariantType.Int64)
        for name, kind in _RESULT.items():
            self._nodes[name] = await last.add_variable(index, name, _EMPTY[kind], kind)
        for name in _COUNTED:
            self._nodes[name] = await counters.add_variable(index, name, 0, ua.VariantType.Int64)
        base = await _companion_event(server) or ObjectIds.BaseEventType
        event = await server.create_custom_event_type(index, "BoardResultReadyType", base, list(_RESULT.items()))
        self._ready = await server.get_event_generator(event.nodeid, system.nodeid)
        await server.nodes.server.add_reference(system, ObjectIds.HasNotifier)

    async def _show_state(self, status: StationStatus) -> None:
        await self._nodes["CurrentState"].write_value(_STATES[status.line])
        await self._nodes["Line"].write_value(status.line.value)
        await self._nodes["Intake"].write_value(status.intake.value)
        await self._nodes["OpenFaults"].write_value(len(status.faults), ua.VariantType.Int64)

    async def _show_result(self, message: Message) -> None:
        body: Mapping[str, Any] = message.body["body"]
        values = {
            "ResultId": message.id,
            "Serial": body["serial"] or body["key"],
            "Verdict": body["verdict"],
            "RecipeId": body["recipe"],
            "RecipeVersion": body["version"],
            "JobId": body["work_order"],
            "Late": body["late"],
            "Components": body["components"],
            "Calls": len(body["calls"]),
            "CreationTime": datetime.fromtimestamp(message.at_us / SECOND_US, UTC),
            "Content": json.dumps(message.body, ensure_ascii=False),
        }
        for name, value in values.items():
            await self._nodes[name].write_value(value, _RESULT[name])
            setattr(self._ready.event, name, value)
        counter = self._nodes[body["verdict"]]
        await counter.write_value(await counter.read_value() + 1, ua.VariantType.Int64)
        await self._ready.trigger(time_attr=values["CreationTime"], message=f"{values['Serial']}: {body['verdict']}")
        at_server = copy(self._ready.event)  # most clients listen to the Server alone, which the library does not tell
        at_server.emitting_node = ua.NodeId(ua.Int32(ObjectIds.Server))
        await self._ready.isession.subscription_service.trigger_event(at_server)


async def _companion_event(server: Server) -> ua.NodeId | None:
    """Return the companion's type of the event, if its nodeset was read."""
    if COMPANION not in await server.get_namespace_array():
        return None
    index = await server.get_namespace_index(COMPANION)
    waiting = [server.get_node(ObjectIds.BaseEventType)]
    while waiting:
        node = waiting.pop()
        if await node.read_browse_name() == ua.QualifiedName("ResultReadyEventType", index):
            return node.nodeid
        waiting += await node.get_children(refs=ObjectIds.HasSubtype)
    return None
