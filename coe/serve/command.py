"""`coe-serve`: the line as a service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.cli.common import Exit, application, complain, out, run
from coe.cli.options import AllowKindOption, StoreOption
from coe.errors import ConfigError, list_few
from coe.serve.enums import Role

if TYPE_CHECKING:
    from coe.serve.database.connecting import Database

app = application("Run CoE as a service: it accepts boards over HTTP, inspects them in time, and keeps their history.")

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Config file of the service.")]


@app.command("run")
def run_service(config_path: ConfigArgument) -> None:
    """Run both processes of a service, web and worker, until SIGTERM or Ctrl-C; started boards are finished first.

    If one of them ends, it is restarted. In a plant, let systemd or compose run `web` and `worker`.

    Example: coe-serve run line7/serve.yaml
    """
    from coe.serve import processes

    if status := processes.run(config_path):
        raise typer.Exit(status)


@app.command()
def web(config_path: ConfigArgument) -> None:
    """Run the process that serves the pages, receives boards and sends messages, until SIGTERM or Ctrl-C.

    Example: coe-serve web /etc/coe/serve.yaml
    """
    from coe.serve import processes
    from coe.serve.service_config import load

    processes.web(load(config_path))


@app.command()
def worker(config_path: ConfigArgument) -> None:
    """Run the process that inspects boards, until SIGTERM or Ctrl-C; started boards are finished first.

    Example: coe-serve worker /etc/coe/serve.yaml
    """
    from coe.serve import processes
    from coe.serve.service_config import load

    processes.worker(load(config_path))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new service.")],
    board: Annotated[
        str,
        typer.Option(
            help="Board to activate: a name or a YAML file of rules. Default: none; teach boards on the page /teach."
        ),
    ] = "",
    store: StoreOption = None,
    memory: Annotated[str, typer.Option(help="Memory for experts and batches, e.g. 1.5GiB.")] = "",
    allow_kind: AllowKindOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the service.")] = 8080,
    within: Annotated[
        float | None,
        typer.Option(help="Seconds from a board's acceptance until it is due, if its request states no time."),
    ] = None,
) -> None:
    """Create a service: a config file, a database, a key for each role, and the recipe of --board.

    Example: coe-serve init line7 --board demo --memory 150MB
    """
    from coe.serve.creation import Wanted, create

    wanted = Wanted(board, store or Path(config.STORE_FOLDER), memory, tuple(allow_kind or ()), port, within)
    created = create(folder, wanted)
    recipe = f"recipe '{created.recipe}' is active; " if created.recipe else ""
    out.print(f"{recipe}keys for each role are in {created.keys}")
    out.print(f"start it with: coe-serve run {created.config}")


@app.command()
def migrate(config_path: ConfigArgument) -> None:
    """Upgrade the database of a stopped service to this version; make a backup first.

    Example: coe-serve migrate line7/serve.yaml
    """
    from coe.serve.database import migration

    with _database(config_path, expects_newest=False) as database:
        changed = migration.migrate(database)
    out.print("the database was brought to the newest schema" if changed else "the database has the newest schema")


@app.command()
def backup(
    config_path: ConfigArgument, folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the copy.")]
) -> None:
    """Copy the data of a service, running or stopped, to a new folder.

    Example: coe-serve backup line7/serve.yaml /mnt/backup/line7-monday
    """
    from coe.serve.backup import back_up
    from coe.serve.service_config import load

    made = back_up(load(config_path), folder)
    missing = f"; {config.counted(made.missing, 'picture is', 'pictures are')} missing" if made.missing else ""
    out.print(f"the database and {config.counted(made.pictures, 'picture')} are in {made.folder}{missing}")


@app.command("verify-audit")
def verify_audit(config_path: ConfigArgument) -> None:
    """Check that no entry of the audit was changed or removed. Exit status 1 if one was.

    Example: coe-serve verify-audit line7/serve.yaml
    """
    from coe.serve.database import audit

    with _database(config_path) as database:
        proof = database.read(audit.prove)
    if proof.broken_id is not None:
        complain(f"entry {proof.broken_id} of the audit was changed, or the entry before it was removed")
        raise typer.Exit(Exit.NOT_GOOD)
    out.print(f"{config.counted(proof.sound, 'entry is', 'entries are')} unchanged; the last hash is {proof.last_hash}")


@app.command("verify-archive")
def verify_archive(config_path: ConfigArgument) -> None:
    """Check that every picture of the archive is unchanged. Exit status 1 if one is missing or changed.

    Example: coe-serve verify-archive line7/serve.yaml
    """
    from coe.serve import retention
    from coe.serve.service_config import load

    folder = load(config_path).retention.archive
    if folder is None:
        raise ConfigError(f"{config_path}: there is no archive; give its folder as `retention.archive`")
    proof = retention.prove(folder)
    if proof.wrong:
        few = list_few(proof.wrong)
        complain(f"{len(proof.wrong)} of {proof.sound + len(proof.wrong)} pictures are missing or changed: {few}")
        raise typer.Exit(Exit.NOT_GOOD)
    out.print(f"{config.counted(proof.sound, 'picture is', 'pictures are')} unchanged")


@app.command("add-key")
def add_key(
    config_path: ConfigArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the holder, which the audit shows.")],
    role: Annotated[Role, typer.Option(help="Role of the holder.")],
    days: Annotated[
        int | None, typer.Option(min=1, max=36500, help="Days the key is valid. Default: for ever.")
    ] = None,
) -> None:
    """Create a key and print it; the key is not shown again.

    Example: coe-serve add-key line7/serve.yaml printer-2 --role feeder --days 365
    """
    from coe.serve.clock import DAY_US, now_us
    from coe.serve.database import audit, keys

    made, moment_us = keys.generate(), now_us()
    expires_us = None if days is None else moment_us + days * DAY_US
    with _database(config_path) as database, database.writing() as connection:
        keys.add(connection, name, role, made, now_us=moment_us, expires_us=expires_us)
        audit.append(connection, "console", "add key", name, now_us=moment_us, detail={"role": role.value})
    out.print(made)


@app.command("set-person")
def set_person(
    config_path: ConfigArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a person, or of the holder of a key.")],
    role: Annotated[Role | None, typer.Option(help="Role of the person, if the name is new.")] = None,
) -> None:
    """Set the badge and the PIN with which a person signs in; the command asks for both.

    Example: coe-serve set-person line7/serve.yaml "Eva Maier" --role operator
    """
    from coe.serve.clock import now_us
    from coe.serve.database import audit, keys

    ask = partial(typer.prompt, default="", show_default=False, hide_input=sys.stdin.isatty(), err=True)
    with _database(config_path) as database:
        known = name in {key.name for key in database.read(keys.all_keys)}
        if known == (role is not None):
            raise ConfigError(
                f"there is '{name}' already; leave --role out, or choose another name" if known
                else f"there is no '{name}' yet; give the role of the person with --role"
            )  # fmt: skip
        badge, pin = ask("Badge (scan it; empty: none)"), ask("PIN (4 to 12 digits; empty: none)")
        badge, pin, moment_us = badge.strip(), pin.strip(), now_us()
        keys.check_secrets(badge, pin)
        if role is not None and not (badge or pin):
            raise ConfigError(f"'{name}' could not sign in: give a badge or a PIN, or make a key with add-key")
        with database.writing() as connection:
            if role is not None:  # the key of a person is for nobody to use
                keys.add(connection, name, role, keys.generate(), now_us=moment_us)
            if not keys.set_secrets(connection, name, badge, pin, moment_us):
                raise ConfigError(f"the key '{name}' was revoked or has expired; choose another name")
            detail = {"badge": bool(badge), "pin": bool(pin)}
            audit.append(connection, "console", "set person", name, now_us=moment_us, detail=detail)
    out.print(f"{name} signs in with {' or '.join(['a badge'] * bool(badge) + ['a PIN'] * bool(pin)) or 'a key alone'}")


@app.command("list-keys")
def list_keys(config_path: ConfigArgument) -> None:
    """List the keys: name, role, expiry.

    Example: coe-serve list-keys line7/serve.yaml
    """
    from coe.serve.clock import iso
    from coe.serve.database import keys

    with _database(config_path) as database, database.reading() as connection:
        for key in keys.all_keys(connection):
            until = "ended" if key.revoked_us else f"until {iso(key.expires_us)}" if key.expires_us else "without end"
            out.print(f"{key.name}  {key.role}  {until}")


@app.command("revoke-key")
def revoke_key(
    config_path: ConfigArgument, name: Annotated[str, typer.Argument(metavar="NAME", help="Holder of the key.")]
) -> None:
    """Revoke a key at once.

    Example: coe-serve revoke-key line7/serve.yaml printer-2
    """
    from coe.serve.clock import now_us
    from coe.serve.database import audit, keys

    with _database(config_path) as database, database.writing() as connection:
        if not keys.revoke(connection, name, now_us()):
            raise ConfigError(f"there is no valid key '{name}'; see `coe-serve list-keys`")
        audit.append(connection, "console", "revoke key", name, now_us=now_us())


@contextmanager
def _database(config_path: Path, *, expects_newest: bool = True) -> Iterator[Database]:
    from sqlalchemy.exc import DBAPIError

    from coe.serve.database.connecting import DatabaseError, open_database
    from coe.serve.database.migration import expect_newest
    from coe.serve.service_config import load

    database = open_database(load(config_path).database_url)
    try:
        yield database
    except (DatabaseError, DBAPIError):
        if expects_newest:  # what is the same in another schema can be done: a key is revoked, an old audit proved
            expect_newest(database)
        raise
    finally:
        database.close()


main = partial(run, app)
