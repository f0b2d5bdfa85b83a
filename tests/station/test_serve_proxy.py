"""nginx in front of a gate, with the file of the documentation: TLS, limits, slow clients, and events that stream."""

import shutil
import socket
import ssl
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from certificates import Authority
from serving import WITH_HEADER, hand_in, png, put
from waiting import eventually

from coe.serve.clock import now_us
from coe.serve.database import keys
from coe.serve.enums import Role

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).parents[2] / "docs" / "operations" / "nginx.conf"


@contextmanager
def proxied(served, folder, authority, *changes):
    """Run nginx as the documentation has it, on a free port and with these changes; yield its address."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("there is no nginx here; install Debian's package `nginx-light`")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    certificate, private_key = authority.certificate("proxy")
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/nginx/coe/certificate.pem", str(certificate)),
        ("/etc/nginx/coe/private_key.pem", str(private_key)),
        ("http://127.0.0.1:8080", served.address),
        *changes,
    ):
        assert old in text
        text = text.replace(old, new)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; {paths} {text} }}"
    (folder / "nginx.conf").write_text(main, encoding="utf-8")
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:

        def listens():
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens)
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def trusting(authority, address, **more):
    context = ssl.create_default_context(cafile=authority.path)
    return httpx.Client(base_url=address, verify=context, timeout=30, trust_env=False, **more)


def test_boards_and_events_go_through_the_proxy_and_sessions_are_of_tls(served, tmp_path):
    plant = Authority(tmp_path, "plant")
    with (
        proxied(served, tmp_path, plant) as address,
        trusting(plant, address, headers=served.feeder.headers) as feeder,
        trusting(plant, address, headers=served.operator.headers) as operator,
        trusting(plant, address) as person,
    ):
        assert put(feeder, "k0", "R1", png(side=900)).status_code == 201
        with operator.stream("GET", "/api/v1/events") as events:
            lines = events.iter_lines()
            assert next(lines) == ": begins"
            assert hand_in(feeder, "k1", {"R1": "A"}).status_code == 202
            assert any("board.accepted" in line for line in lines)
            events.close()
        key = keys.generate()
        served.database.write(keys.add, "eva", Role.OPERATOR, key, now_us=now_us())
        answer = person.post("/api/v1/session", json={"key": key}, headers=WITH_HEADER)
        assert "secure" in answer.headers["set-cookie"].lower()
        assert person.get("/").status_code == 200


def test_slow_and_many_clients_are_the_proxys_business(served, tmp_path):
    plant = Authority(tmp_path, "plant")
    changes = (("client_header_timeout 10s", "client_header_timeout 1s"), ("coe_each 200", "coe_each 1"))
    with proxied(served, tmp_path, plant, *changes) as address:
        context = ssl.create_default_context(cafile=plant.path)
        with (
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as silent,
        ):
            silent.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n")
            assert silent.recv(1) == b"", "it was sent away"
        with (
            trusting(plant, address, headers=served.operator.headers) as one,
            trusting(plant, address) as other,
            one.stream("GET", "/api/v1/events") as events,
        ):
            assert events.status_code == 200
            assert other.get("/health/live").status_code == 503
