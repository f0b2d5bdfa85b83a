"""The demo line goes on while the service starts a process again, and ends with it; its history has pictures."""

from argparse import Namespace
from hashlib import sha256

import httpx
from sqlalchemy import select

from apps.serve_demo import history, line
from coe.serve.clock import now_us
from coe.serve.database import tables
from coe.serve.picture_folder import Pictures


def test_boards_go_on_coming_after_a_gate_has_died_and_end_with_the_service(capsys):
    answers = [202, httpx.RemoteProtocolError("it closed the connection"), 503, 202]

    def answer(request):
        status = answers.pop(0)
        if isinstance(status, Exception):
            raise status
        return httpx.Response(status)

    client = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    line.feed(client, {"SN1": []}, 0, is_running=lambda: bool(answers))
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "board 1 was not accepted: it closed the connection"
    assert "board 2" in told[1]
    assert "503" in told[1]


def test_the_newest_boards_of_a_history_have_pictures(sqlite_database, tmp_path):
    pictures = Pictures(tmp_path / "pictures")
    pictures.prepare()
    recipe = sqlite_database.write(history.recipe_of)
    wanted = Namespace(boards=3, hours=1.0, pictured=2, seed=1)
    history.fill(sqlite_database, recipe, wanted, pictures, now_us())
    with sqlite_database.reading() as connection:
        views = connection.execute(select(tables.view.c.file, tables.view.c.sha256)).all()
    assert views
    assert all(sha256((pictures.folder / file).read_bytes()).hexdigest() == digest for file, digest in views)
