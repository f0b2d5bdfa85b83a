"""The demo line goes on while the service starts a process again, and ends with the service."""

from __future__ import annotations

from http.client import RemoteDisconnected

import pytest

from apps.serve_demo import line


def test_boards_go_on_coming_after_a_gate_has_died_and_end_with_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [202, RemoteDisconnected("it closed the connection"), 503, 202]

    def send(address: str, key: str, method: str, path: str, body: bytes, **headers: str) -> int:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(line, "send", send)
    line.feed("http://127.0.0.1:1", "key", {"SN1": []}, 0, is_running=lambda: bool(answers))
    assert capsys.readouterr().out.splitlines() == [
        "board 1 was not accepted: it closed the connection",
        "board 2 was not accepted: status 503",
    ]
