"""Opening a database. Every transaction of the service begins here, and no other module reads errors of a driver."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import psutil
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from coe.errors import CoeError, ConfigError

NO_ROOM_BYTES = 1 << 20  # with less than this a disk counts as full, though nobody has failed to write yet


class DatabaseErrorKind(StrEnum):
    """Why the database did not do what it was asked."""

    BUSY = "busy"  # another program holds its lock; the same question later may succeed
    FULL = "full"  # its disk is full
    LOST = "lost"  # it cannot be reached, read or written


class DatabaseError(CoeError):
    """The database did not do what it was asked; nothing of the transaction was written. `kind` says why."""

    def __init__(self, kind: DatabaseErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


_SENTENCES = {
    DatabaseErrorKind.BUSY: "the database is locked by another program, or its disk hangs; check both; the station "
    "then resumes by itself",
    DatabaseErrorKind.FULL: "the disk of the database is full; free space; the station then resumes by itself",
}
_SQLITE = {
    sqlite3.SQLITE_BUSY: DatabaseErrorKind.BUSY,
    sqlite3.SQLITE_LOCKED: DatabaseErrorKind.BUSY,
    sqlite3.SQLITE_FULL: DatabaseErrorKind.FULL,
}
_POSTGRESQL = {
    "40001": DatabaseErrorKind.BUSY,  # serialization failure
    "40P01": DatabaseErrorKind.BUSY,  # deadlock
    "55P03": DatabaseErrorKind.BUSY,  # lock not available
    "57014": DatabaseErrorKind.BUSY,  # statement timeout
    "53100": DatabaseErrorKind.FULL,
}


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Raise DatabaseError for a driver's error, unless it is that of a statement, such as IntegrityError."""
    try:
        yield
    except IntegrityError:
        raise
    except NoConnection as error:  # all connections wait for a database that does not answer
        raise _error(url, DatabaseErrorKind.LOST, "all connections are in use") from error
    except DBAPIError as error:
        # A statement's errors are of a class below the driver's DatabaseError; SQLite raises that for a damaged file.
        is_of_database = isinstance(error, OperationalError) or type(error) is exc.DatabaseError
        if not is_of_database and not error.connection_invalidated:
            raise
        raise _error(url, _kind(url, error.orig), error.orig) from error


def _error(url: URL, kind: DatabaseErrorKind, why: object) -> DatabaseError:
    lost = f"the database {url.render_as_string()} cannot be reached or read: {why}"
    return DatabaseError(kind, _SENTENCES.get(kind, lost))


def _kind(url: URL, error: BaseException | None) -> DatabaseErrorKind:
    if isinstance(error, sqlite3.Error):
        # The low byte is the result; the others say more about it.
        result = error.sqlite_errorcode & 0xFF
        if result == sqlite3.SQLITE_IOERR and _is_full(url):  # it says so of the files that it keeps beside it
            return DatabaseErrorKind.FULL
        return _SQLITE.get(result, DatabaseErrorKind.LOST)
    return _POSTGRESQL.get(getattr(error, "sqlstate", None) or "", DatabaseErrorKind.LOST)


def _is_full(url: URL) -> bool:
    try:
        return shutil.disk_usage(Path(url.database or "").parent).free < NO_ROOM_BYTES
    except OSError:
        return False


BUSY_S = 5.0  # how long a transaction waits for another writer before it raises DatabaseError
WAL_PAGES = 1000  # after this many pages in the log, a commit copies them into the database
MAX_WAL_BYTES = 64 << 20  # the log's file is cut to this size whenever it starts again
_CONNECTIONS = 16
WRITES = "coe_writes"  # the option of a connection that will write: SQLite then takes the lock at the beginning
SYNCHRONOUS = "FULL"  # a commit of SQLite returns once it is on the disk
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Database:
    """A database that is open. `url` is its address; several threads and processes may use it at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # A transaction of SQLite sees one state of the database anyway.
        self._readers = engine if self.is_sqlite else engine.execution_options(isolation_level="REPEATABLE READ")

    @property
    def url(self) -> URL:
        """The address, with its password."""
        return self.engine.url

    @property
    def is_sqlite(self) -> bool:
        """Whether it is the embedded database."""
        return self.engine.dialect.name == "sqlite"

    @property
    def file(self) -> Path | None:
        """The file of the embedded database."""
        return Path(self.url.database or "") if self.is_sqlite else None

    @property
    def silence(self) -> str:
        """What is said of it while it does not answer."""
        if self.is_sqlite:
            return "the database does not answer; check the disk of the service's folder"
        return f"the database at {self.url.host or 'this machine'} does not answer; check its server and the network"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database, and writes nothing; raises DatabaseError."""
        with translated(self.url), self._readers.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection whose changes are on the disk when the block ends, or undone if it raises.

        Raises DatabaseError. The block holds SQLite's only lock for writing: nothing in it may wait for anything.
        """
        with translated(self.url), self.engine.connect() as connection:
            writer = connection.execution_options(**{WRITES: True})
            with writer.begin():
                yield writer

    def read(self, query: Callable[Concatenate[Connection, _P], _T], *given: _P.args, **more: _P.kwargs) -> _T:
        """Return the result of a query of one state of the database; raises DatabaseError."""
        with self.reading() as connection:
            return query(connection, *given, **more)

    def write(self, query: Callable[Concatenate[Connection, _P], _T], *given: _P.args, **more: _P.kwargs) -> _T:
        """Return the result of a query whose changes are on the disk then; raises DatabaseError."""
        with self.writing() as connection:
            return query(connection, *given, **more)

    def shorten_log(self) -> None:
        """Copy the log into the database and cut it; for SQLite, now and then. Raises DatabaseError."""
        if self.is_sqlite:
            with translated(self.url), self.engine.connect() as connection:
                connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __str__(self) -> str:
        return f"the database {self.url.render_as_string(hide_password=True)}"


def open_database(url: str, *, busy_s: float = BUSY_S) -> Database:
    """Open the database at a URL: `sqlite:////var/lib/coe/serve.db` or `postgresql+psycopg://user@host/name`.

    Opening makes no file and no tables: see `coe.serve.database.migration`. A transaction waits `busy_s` for another
    writer. Raises ConfigError for a URL that cannot be used, and for a SQLite file on a network file system.
    """
    try:
        address = make_url(url)
        if address.get_backend_name() == "sqlite":
            return Database(_sqlite(address, busy_s))
        if address.get_backend_name() == "postgresql":
            return Database(_postgresql(address, busy_s))
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise ConfigError(f"database: {error}; give sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME") from None
    raise ConfigError(
        f"database: '{address.get_backend_name()}' is not supported; give sqlite:///FILE or "
        "postgresql+psycopg://USER@HOST/NAME"
    )


def _sqlite(url: URL, busy_s: float) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError("database: a database in memory is lost with its process; give sqlite:///FILE")
    refuse_network(Path(url.database))
    folder = Path(url.database).parent
    try:
        folder.stat()
    except PermissionError:
        raise ConfigError(
            f"database: no permission for {folder}; run this as the user of the service, or as root"
        ) from None
    except OSError:
        raise ConfigError(
            f"database: the folder {folder} does not exist; create it, mount its disk, or give another `data`"
        ) from None
    # Without an isolation level Python begins no transactions by itself.
    engine = create_engine(url, connect_args={"timeout": busy_s, "isolation_level": None}, pool_size=_CONNECTIONS)
    event.listen(engine, "do_connect", _make_no_file)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin)
    return engine


def _make_no_file(dialect: object, record: object, arguments: list[Any], more: dict[str, Any]) -> None:
    """Open the file that is there, and make none in its place: its disk may be away."""
    arguments[0], more["uri"] = f"{Path(arguments[0]).as_uri()}?mode=rw", True


def _set_up_sqlite(connection: Any, record: object) -> None:
    """Make commits durable, keep the log short, and hold rows to the rows that they refer to."""
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={SYNCHRONOUS}",
        "foreign_keys=ON",
        f"wal_autocheckpoint={WAL_PAGES}",
        f"journal_size_limit={MAX_WAL_BYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and writes later could find that another wrote in between; SQLite then refuses.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: URL, busy_s: float) -> Engine:
    lock_ms = round(1000 * busy_s)
    options = f"-c lock_timeout={lock_ms} -c timezone=UTC -c synchronous_commit=on"
    ends = {name: value for name, value in _ENDS.items() if name not in url.query}
    # A server that was restarted is found again at the next transaction.
    return create_engine(url, connect_args={"options": options, **ends}, pool_size=_CONNECTIONS, pool_pre_ping=True)


_ENDS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Of a server that is not there any more, the client learns after ten seconds; by itself after a quarter of an hour, or
never. One that is there and does not answer is waited for."""


_NETWORK = "9p afs afp ceph cifs davfs gfs2 glusterfs lustre ncpfs nfs nfs4 ocfs2 smb3 smbfs sshfs virtiofs"
"""File systems whose locks do not hold between machines, or that do not share memory, which WAL needs."""


def refuse_network(path: Path) -> None:
    """Raise ConfigError if a file at a path would lie on a network file system."""
    kind = file_system_of(path)
    if kind.removeprefix("fuse.") in _NETWORK.split():
        raise ConfigError(
            f"{path} is on a network file system ({kind}), where SQLite's locks and its log are unreliable; move "
            "the data to a local disk, or use a PostgreSQL database"
        )


def file_system_of(path: Path) -> str:
    """Return the kind of file system that holds a path, as "ext4"; empty if the system does not tell."""
    place = path.absolute().resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    # A later mount at the same place hides the earlier one.
    deepest = max(enumerate(mounts), key=lambda at: (len(Path(at[1].mountpoint).parts), at[0]), default=None)
    return deepest[1].fstype.lower() if deepest else ""
