"""Webhooks: signed, to the listed host alone, no redirect followed, tried again until they are acknowledged."""

import json
import socket
import ssl
import threading
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from bridging import bridged, is_faulty, waiting
from brokers import free_port
from certificates import Authority
from serve_rows import NOON, decided, ng
from serving import config_of
from waiting import eventually

from coe.serve.bridge.sinks import Message, Origin, SinkFailed, sinks_of
from coe.serve.bridge.webhook import WebhookConnection, WebhookSettings, signature
from coe.serve.database import fault_log


@dataclass
class Answering:
    """A server that answers each POST with the next status, and remembers what came."""

    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    posted: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0
    port: int = 0


@contextmanager
def answering(*statuses, tls=None, **headers):
    state = Answering(list(statuses), headers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            state.connections += 1

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.posted.append((self.path, dict(self.headers), body))
            self.send_response(state.statuses.pop(0) if state.statuses else 204)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):
            pytest.fail("a redirect was followed")

        def log_message(self, *rest): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("COE_TEST_SECRET", "key")


def sink_at(url, timeout_s=5.0, **more):
    settings = {"url": url, "secret": {"environment": "COE_TEST_SECRET"}, "timeout_s": timeout_s, **more}
    return WebhookConnection(WebhookSettings.model_validate(settings), Origin("aoi-1"), lambda: NOON)


HELLO = Message("u1", "board.decided", NOON, {"said": "grüß"})


def tell(server, times=1, timeout_s=5.0):
    """Send a message so often to a server on this machine."""
    with closing(sink_at(f"http://127.0.0.1:{server.port}/hook?a=1", timeout_s)) as sink:
        for _ in range(times):
            sink.send(HELLO)


def test_a_name_that_nobody_resolves_holds_the_queue_once(monkeypatch):
    """A name server that is away answers after minutes."""
    go_on = threading.Event()

    def away(*_, **__):
        go_on.wait()
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", away)
    sink = sink_at("http://hook.test", 0.2)
    with pytest.raises(SinkFailed, match="in time"):
        sink.send(HELLO)
    go_on.set()
    sink.close()


def test_a_message_is_signed_and_says_its_id():
    with answering() as server:
        tell(server, 2)
    path, headers, body = server.posted[0]
    assert path == "/hook?a=1"
    assert json.loads(body) == {"said": "grüß"}
    assert (headers["X-CoE-Id"], headers["X-CoE-Name"]) == ("u1", "board.decided")
    assert headers["X-CoE-Timestamp"] == str(NOON // 1_000_000)
    assert headers["X-CoE-Signature"] == "sha256=" + signature("key", NOON // 1_000_000, body)
    assert server.connections == 1, "one connection carries several messages"
    assert server.posted[0][1]["X-CoE-Signature"] == server.posted[1][1]["X-CoE-Signature"]


@pytest.mark.parametrize(("status", "sentence"), [(302, "302"), (500, "status 500"), (404, "404")])
def test_what_is_not_acknowledged_is_a_failure(status, sentence):
    with answering(status, Location="/elsewhere") as server, pytest.raises(SinkFailed, match=sentence):
        tell(server)
    assert len(server.posted) == 1


def test_a_server_that_is_not_there_is_named_whatever_else_is_being_handled():
    server = Answering(port=free_port())
    try:
        raise KeyError("something else")
    except KeyError:
        with pytest.raises(SinkFailed, match=f"127.0.0.1:{server.port}.*refused"):
            tell(server)


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again():
    with answering(204, 204, Connection="close") as server:
        tell(server, 2)
    assert len(server.posted) == server.connections == 2


def test_no_proxy_of_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("all_proxy", f"http://127.0.0.1:{free_port()}")
    with answering() as server:
        tell(server)
    assert len(server.posted) == 1


@pytest.mark.usefixtures("hasty")
def test_a_hook_of_the_config_is_told_until_it_acknowledges(sqlite_database, tmp_path):
    (tmp_path / "key").write_text("k\n")
    with answering(503, 503) as server:
        hook = {"url": f"http://127.0.0.1:{server.port}/in", "secret": {"file": str(tmp_path / "key")}}
        config = config_of(tmp_path, sinks={"hosts": ["127.0.0.1"], "webhooks": {"erp": hook}})
        with bridged(sqlite_database, sinks_of(config.station, config.sinks)):
            sqlite_database.write(decided, "k1", ng())
            eventually(lambda: any(json.loads(body)["kind"] == "fault.cleared" for _, _, body in server.posted))
    kinds = [json.loads(body)["kind"] for _, _, body in server.posted]
    assert kinds == ["board.accepted"] * 3 + ["board.decided", "fault.raised", "fault.cleared"]
    assert len({headers["X-CoE-Id"] for _, headers, _ in server.posted[:3]}) == 1
    assert not is_faulty(sqlite_database)


@pytest.mark.usefixtures("hasty")
def test_a_sink_without_its_secret_waits_alone_until_it_is_there(sqlite_database, tmp_path):
    (tmp_path / "mes").write_text("k\n")
    with answering() as server:
        url = f"http://127.0.0.1:{server.port}/in"
        hooks = {name: {"url": url, "secret": {"file": str(tmp_path / name)}} for name in ("erp", "mes")}
        config = config_of(tmp_path, sinks={"hosts": ["127.0.0.1"], "webhooks": hooks})
        with bridged(sqlite_database, sinks_of(config.station, config.sinks)):
            sqlite_database.write(decided, "k1", ng())
            eventually(lambda: not waiting(sqlite_database, "mes") and is_faulty(sqlite_database))
            assert [fault.about for fault in sqlite_database.read(fault_log.open_faults)] == ["erp"]
            (tmp_path / "erp").write_text("k\n")
            eventually(lambda: not waiting(sqlite_database, "erp") and not is_faulty(sqlite_database))


HEAD = b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 400
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n"


@pytest.mark.parametrize("at_once", [None, b"", LONG, b"HTTP/1.1 100 Continue\r\n\r\n" * 10])
def test_a_server_that_answers_nothing_or_a_byte_at_a_time_is_a_failure_in_time(at_once):
    ended = threading.Event()

    def drip(server):
        client, _ = server.accept()
        with client, suppress(OSError):
            client.recv(65536)
            client.sendall(at_once or b"")
            for byte in HEAD:
                if ended.wait(0.05 if at_once is not None else None):
                    return
                client.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip, args=(server,))
        dripping.start()
        try:
            with pytest.raises(SinkFailed, match="does not answer in time"):
                tell(Answering(port=server.getsockname()[1]), timeout_s=0.3)
            assert dripping.is_alive(), "the server would have gone on for 20 s"
        finally:
            ended.set()
            dripping.join()


def test_a_message_over_tls_is_told_to_a_host_with_a_good_certificate_alone(tmp_path):
    plant, other = Authority(tmp_path, "plant"), Authority(tmp_path, "other")
    certificate, private = plant.certificate("hook")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    with answering(tls=context) as server:
        for authority in (plant, other):
            refused = nullcontext() if authority is plant else pytest.raises(SinkFailed, match="cannot be reached")
            with closing(sink_at(f"https://localhost:{server.port}", ca=authority.path)) as sink, refused:
                sink.send(HELLO)
                sink.send(HELLO)
    assert [path for path, _, _ in server.posted] == ["/", "/"]
    assert server.posted[0][1]["Host"] == f"localhost:{server.port}"


def test_a_handshake_that_does_not_end_is_a_failure_in_time():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SinkFailed, match="in time"):
        sink_at(f"https://127.0.0.1:{server.getsockname()[1]}", 0.2).send(HELLO)
