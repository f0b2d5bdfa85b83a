"""Databases for tests of the service: SQLite always, PostgreSQL where `COE_TEST_POSTGRESQL` or a local server is.

The contract suite runs on both. A database is a copy of one that was migrated once.
"""

import itertools
import os
import shutil
import signal
import subprocess
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from serving import activated, config_of, embedded, serving
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from stations import Shop
from tiny_line import TINY

from coe.serve.bridge import outbox_relay
from coe.serve.clock import now_us
from coe.serve.database import connecting, keys, states
from coe.serve.database.connecting import Database, open_database
from coe.serve.database.migration import migrate
from coe.serve.enums import LineState, Process, Subject
from coe.serve.worker import station

POSTGRESQL_VARIABLE = "COE_TEST_POSTGRESQL"
_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def signals_do_what_they_did():
    """Give a test's process its signals back: a process of the service, called in a test, takes them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A migrated SQLite file; tests get copies."""
    path = tmp_path_factory.mktemp("serve") / "template.db"
    with closing(open_database(f"sqlite:///{path}")) as database:
        migrate(database)
        database.shorten_log()
    return path


@pytest.fixture
def sqlite_database(sqlite_template, tmp_path):
    copy = shutil.copy(sqlite_template, tmp_path / "serve.db")
    with closing(open_database(f"sqlite:///{copy}", busy_s=2.0)) as database:
        yield database


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory):
    """The URL of a PostgreSQL server in which databases may be made; the server ends with the tests."""
    if given := os.environ.get(POSTGRESQL_VARIABLE):
        yield given
        return
    if not _PROGRAMS:
        pytest.skip(f"there is no PostgreSQL here; install it, or set {POSTGRESQL_VARIABLE} to the URL of a server")
    # PostgreSQL refuses to run as root, and the path of its socket must be short.
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(
        subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True, user=user).stdout.strip()
    )
    programs = _PROGRAMS[-1].parent

    def quietly(*command):
        words = [str(word) for word in command]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, cwd=folder)

    try:
        quietly(programs / "initdb", "-D", folder / "data", "-U", "coe", "-A", "trust", "-N")
        settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        server = (programs / "pg_ctl", "-D", folder / "data", "-w", "-o", settings)
        quietly(*server, "start")
        try:
            yield f"postgresql+psycopg://coe@/postgres?host={folder}"
        finally:
            quietly(*server, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _created(url, template="template1"):
    """A database of a PostgreSQL server, a copy of another one, until the block ends."""
    name = f"coe_{os.getpid()}_{next(_numbers)}"
    _do(url, f"CREATE DATABASE {name} TEMPLATE {template}")
    there = make_url(url).set(database=name).render_as_string(hide_password=False)
    with closing(open_database(there, busy_s=2.0)) as database:
        yield database
    _do(url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgresql_database(postgresql_url, postgresql_template):
    with _created(postgresql_url, postgresql_template) as database:
        yield database


@pytest.fixture(scope="session")
def postgresql_template(postgresql_url):
    """The name of a migrated PostgreSQL database; tests get copies."""
    with _created(postgresql_url) as database:
        migrate(database)
        database.close()  # a database that is in use cannot be copied
        yield database.url.database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request):
    """An empty migrated database of each kind, one after the other."""
    found = request.getfixturevalue(f"{request.param}_database")
    assert isinstance(found, Database)
    return found


@pytest.fixture
def bare_database(request, database, tmp_path):
    """A database without tables, of the kind of the test's other database."""
    if database.is_sqlite:
        (tmp_path / "bare.db").touch()
        made = closing(open_database(f"sqlite:///{tmp_path}/bare.db"))
    else:
        made = _created(request.getfixturevalue("postgresql_url"))
    with made as bare:
        yield bare


@pytest.fixture(scope="session", autouse=True)
def no_commit_waits_for_the_disk():
    """Let SQLite leave commits to the system, as `nothing_waits_for_the_disk` leaves files: processes end, no power."""
    assert connecting.SYNCHRONOUS == "FULL"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connecting, "SYNCHRONOUS", "OFF")
        yield


@pytest.fixture(scope="session", autouse=True)
def badges_are_hashed_fast():
    """Let the slow hash of badges and PINs be a fast one: tests in which commands run in processes set no badges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "WORK", 2)
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_are_compiled_once():
    """Let all SQLite databases share the statements that SQLAlchemy compiled: each test opens several databases."""
    create, compiled = connecting.create_engine, {}

    def sharing(url, **options):
        return create(url, execution_options={"compiled_cache": compiled}, **options)

    with pytest.MonkeyPatch.context() as patch:
        # What is compiled is kept by its dialect, of which each engine has its own.
        patch.setattr(SQLiteDialect_pysqlite, "__eq__", lambda one, other: type(one) is type(other))
        patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda one: hash(type(one)))
        patch.setattr(connecting, "create_engine", sharing)
        yield


@pytest.fixture(scope="session", autouse=True)
def workers_look_often():
    """Let a worker that has nothing to do look for boards five times as often: tests wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(station, "LOOK_S", 0.05)
        patch.setattr(station, "GLANCE_S", 0.01)
        yield


@pytest.fixture
def answers(monkeypatch):
    """What a share waits for that does not answer in time."""
    monkeypatch.setenv("COE_READ_TIMEOUT", "50ms")
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hasty(monkeypatch):
    for name, pause_s in (("LOOK_S", 0.02), ("FIRST_PAUSE_S", 0.02), ("LONGEST_PAUSE_S", 0.1)):
        monkeypatch.setattr(outbox_relay, name, pause_s)


@pytest.fixture
def config(tmp_path):
    return config_of(tmp_path, drain_s=5)


@pytest.fixture
def shop(config, database, tiny):
    return Shop(config, database, tiny)


@pytest.fixture
def served(tmp_path, sqlite_template):
    """A gate with an embedded database, a key of each role, and the tiny board's recipe."""
    config = config_of(tmp_path)
    with embedded(config, sqlite_template) as database:
        activated(database, TINY)
        with serving(config, database) as running:
            yield running


@pytest.fixture(name="station")
def impatient(served):
    """A gate that waits briefly for a lock, beside a line that answers."""
    patient = served.gate.database
    served.gate.database = open_database(patient.url.render_as_string(), busy_s=0.1)
    with patient.writing() as connection:
        states.change(connection, Subject.LINE, LineState.WAITING, by="test", now_us=now_us())
        states.beat(connection, Process.WORKER, pid=1, now_us=now_us())
    yield served
    served.gate.database.close()
    served.gate.database = patient


@pytest.fixture
def browser():
    """Chromium, or a sentence that says what is missing."""
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium here; install Debian's package `chromium`")
    with library.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def _do(url, statement):
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
