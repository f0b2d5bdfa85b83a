"""The demo line goes on while the service starts a process again, and ends with the service."""

from __future__ import annotations

from http.client import RemoteDisconnected

import pytest

from apps.serve_demo import line
from coe.serve.benchmark.running import Answered, Client


def test_boards_go_on_coming_after_a_gate_has_died_and_end_with_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [202, RemoteDisconnected("it closed the connection"), 503, 202]

    def send(client: Client, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return Answered(answer, b"{}", 0.0)

    monkeypatch.setattr(Client, "send", send)
    line.feed(Client(1, "key"), {"SN1": []}, 0, is_running=lambda: bool(answers))
    assert capsys.readouterr().out.splitlines() == [
        "board 1 was not accepted: it closed the connection",
        "board 2 was not accepted: the service answered 503: {}",
    ]
