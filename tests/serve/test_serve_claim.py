"""Two services never work with one database: each would decide the other's boards, without their pictures."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from coe.errors import ConfigError
from coe.serve import supervisor
from coe.serve.database.connecting import Claim, Database, open_database
from coe.serve.database.database_errors import DatabaseError, DatabaseErrorKind
from coe.serve.supervisor import Supervisor


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """The same database, as another service has opened it."""
    opened = open_database(url_of(database))
    yield opened
    opened.close()


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def test_one_service_alone_works_with_a_database(
    database: Database, other: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, later = Claim(other), Claim(database)
    assert claim.hold()
    assert claim.hold()
    assert not later.hold()
    monkeypatch.setattr(supervisor, "CLAIM_AT_START_S", 0.0)
    config = tmp_path / "serve.yaml"
    config.write_text(f"station: test\nlisten: {{port: 0}}\ndatabase: {json.dumps(url_of(other))}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="another service works with it"):
        Supervisor(config).run()
    claim.release()
    assert later.hold()
    later.release()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.slow
def test_a_claim_that_the_server_has_forgotten_is_taken_again_unless_another_service_was_first(
    database: Database, other: Database
) -> None:
    claim, later = Claim(database), Claim(other)
    # It returns once the session is gone; without a time it would return at once.
    forget = text("SELECT pg_terminate_backend(pid, 20000) FROM pg_locks WHERE locktype = 'advisory'")
    assert claim.hold()
    with other.writing() as connection:
        connection.execute(forget)
    assert claim.hold()
    assert not later.hold()
    with other.writing() as connection:
        connection.execute(forget)
    assert later.hold()
    assert not claim.hold()
    later.release()


def test_a_service_that_lost_its_claim_ends(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("station: test\n", encoding="utf-8")
    running, claim = Supervisor(config), Claim(sqlite_database)

    def keep(at_s: float, answer: bool | DatabaseError) -> None:
        def hold(self: Claim) -> bool:
            if isinstance(answer, DatabaseError):
                raise answer
            return answer

        monkeypatch.setattr(Claim, "hold", hold)
        running._keep_claim(claim, lambda: at_s)

    keep(100, True)
    keep(300, DatabaseError(DatabaseErrorKind.LOST, "it was away"))
    keep(301, False)  # it may not have noticed yet that the session of before is gone
    keep(330, False)
    with pytest.raises(ConfigError, match="another service"):
        keep(332, False)
