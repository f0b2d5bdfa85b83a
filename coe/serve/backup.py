"""`coe-serve backup`: a whole copy of a running service's data. It is consistent, drafts aside, or there is none."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from coe.errors import ConfigError
from coe.helpers import system
from coe.helpers.files import save_tree, writing
from coe.serve.database.connecting import open_database
from coe.serve.database.migration import revision_of
from coe.serve.service_config import DATABASE, PICTURES, ServeConfig
from coe.serve.teach.teach_draft import FOLDER


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup holds; `missing` pictures were removed by retention while it was made, or are lost."""

    folder: Path
    pictures: int
    missing: int


def back_up(config: ServeConfig, folder: Path) -> Backup:
    """Copy the database as it is at one moment, the pictures that it names, and all drafts of boards, to a new folder.

    The folder gets its name once it is whole, and can then take the place of the service's data. Raises ConfigError for
    a database that is not embedded, has no tables, or is damaged, and for a folder that is there already.
    """
    database = open_database(config.database_url)
    source = database.file
    if source is None:
        raise ConfigError("a PostgreSQL database is backed up with pg_dump; copy the folder of pictures after it")
    revision = revision_of(database)
    database.close()
    if revision is None:
        raise ConfigError(f"{database} has no tables, so nothing can be backed up; check `data` in the config")
    if folder.exists():
        raise ConfigError(f"{folder} exists already; give a new folder")
    unfinished = folder.with_name(f".{folder.name}.tmp")
    with writing(folder):
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700, parents=True)  # PINs can be found from their hashes
            with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(unfinished / DATABASE)) as copy:
                live.backup(copy)
                with copy:
                    copy.execute("DELETE FROM session")  # who signs out later must not be signed in by the backup
                files = sorted(file for (file,) in copy.execute("SELECT file FROM view WHERE removed_us IS NULL"))
            missing = _copy(config.pictures, files, unfinished / PICTURES)
            _drafts(config.data / FOLDER, unfinished / FOLDER)
            save_tree(unfinished)
            system.replace(unfinished, folder)
            system.save_names(folder.parent)
        except sqlite3.Error as error:
            result = error.sqlite_errorcode & 0xFF
            if result in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):  # the copy is as the source is
                raise ConfigError(f"the database {source} is damaged ({error}); restore an earlier backup") from None
            raise OSError(errno.ENOSPC if result == sqlite3.SQLITE_FULL else errno.EIO, str(error)) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return Backup(folder, len(files) - missing, missing)


def _drafts(source: Path, backup: Path) -> None:
    """Copy the drafts of boards; each file is whole, and one that goes meanwhile is left out."""
    for path in source.rglob("*"):
        target = backup / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        with suppress(FileNotFoundError):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def _copy(source: Path, files: Sequence[str], backup: Path) -> int:
    missing = 0
    for file in files:
        (backup / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(source / file, backup / file)
        except FileNotFoundError:
            missing += 1
    return missing
