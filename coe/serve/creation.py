"""`coe-serve init`: all that a service needs. Nothing is written until the recipe is known to work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coe.board import calibration_file, rules
from coe.errors import ConfigError
from coe.helpers import plugins
from coe.helpers.files import alone, write_atomically, writing
from coe.helpers.strict_model import of_json
from coe.inspector import weights_used
from coe.serve import service_config as configs
from coe.serve.clock import now_us
from coe.serve.credentials import make_all
from coe.serve.database import audit, keys, recipe_versions
from coe.serve.database.connecting import open_database
from coe.serve.database.migration import migrate, revision_of
from coe.serve.enums import ActivationState, Role
from coe.serve.recipe_content import RecipeContent
from coe.store.store import Store

CONFIG, KEYS = "serve.yaml", "keys.json"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a new service is made of: a board ("": people teach it one), the store of weights, options of its line."""

    board: str
    store: Path
    memory: str = ""
    allow_kinds: Sequence[str] = ()
    port: int = 8080
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """What was made: the config file, the file of keys, and the name of the recipe, empty without one."""

    config: Path
    keys: Path
    recipe: str


def create(folder: Path, wanted: Wanted) -> Created:
    """Write a config, make the database, a key for each role, and the board's recipe, if there is one, which is active.

    Raises ConfigError if the folder holds a service or its database already, or a kind of the board is not allowed or
    not installed, RulesError and StoreError for a board that cannot be used, NotWritten where nothing can be written.
    """
    path, keys_path = folder / CONFIG, folder / KEYS
    board = rules.load(wanted.board) if wanted.board else None
    if board is None and wanted.within_s is not None:
        raise ConfigError("--within is kept in the recipe of a board; give --board, or leave it out")
    name = _called(folder) if board is None else board.board
    plugins.packages(wanted.allow_kinds)
    content = None if board is None else _content(board, wanted)
    made = {role.value: keys.generate() for role in Role}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with writing(folder), alone(folder):  # of two that are begun at once, the second finds what the first has made
        for taken in (path, keys_path):
            if taken.exists():
                raise ConfigError(f"{taken} exists already; give another folder, or remove the station there")
        try:
            write_atomically(path, [_config_text(name, wanted)])
            config = configs.load(path)
            config.data.mkdir(parents=True, exist_ok=True)
            make_all(config.data)
            write_atomically(keys_path, [json.dumps(made, indent=1) + "\n"], mode=0o600)
            _fill(config, name, content, made)
        except BaseException:  # else no other try could be made here
            with suppress(OSError):
                path.unlink()
                keys_path.unlink()
            raise
    return Created(path, keys_path, "" if board is None else board.board)


def _called(folder: Path) -> str:
    """Return a name for a station that has no board yet: that of its folder, of the signs that names may have."""
    return re.sub(r"[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-")[:100] or "station"


def _content(board: rules.Rules, wanted: Wanted) -> RecipeContent:
    calibration = calibration_file.content(board.path) or b""
    texts = {"rules": board.path.read_text(encoding="utf-8"), "calibration": calibration.decode()}
    content = of_json({**texts, "within_s": wanted.within_s}, RecipeContent)
    for kind in sorted({expert.kind for expert in board.experts.values()}):
        module = plugins.find(kind, wanted.allow_kinds, group=plugins.KINDS, noun="kind").module
        try:
            is_there = find_spec(module) is not None
        except ModuleNotFoundError:  # a package that it lies in
            is_there = False
        if not is_there:
            raise ConfigError(
                f"kind '{kind}': no module {module} is installed; install it, or name its folder in PYTHONPATH"
            )
    weights_used.read_manifests(content.board(board.board), Store(wanted.store))
    return content


def _config_text(station: str, wanted: Wanted) -> str:
    lines = [
        "# The settings of a service. Start it with: coe-serve run " + CONFIG,
        f"station: {station}",
        "data: data",
        f"listen: {{port: {wanted.port}}}",
        "line:",
        f"  store: {json.dumps(str(wanted.store.absolute()))}",
    ]
    if wanted.memory:
        lines.append(f"  memory: {wanted.memory}")
    if wanted.allow_kinds:
        lines.append(f"  allow_kinds: {json.dumps(list(wanted.allow_kinds))}")
    return "\n".join(lines) + "\n"


def _fill(config: configs.ServeConfig, name: str, content: RecipeContent | None, made: Mapping[str, str]) -> None:
    database = open_database(config.database_url)
    try:
        if revision_of(database) is not None and database.read(keys.any_valid, now_us()):
            raise ConfigError(f"{database} belongs to another station; give another folder, or move it away")
        migrate(database)
        with database.writing() as connection:
            moment_us = now_us()
            for role, key in made.items():
                keys.add(connection, role, Role(role), key, now_us=moment_us)
            if content is None:
                audit.append(connection, "init", "create", f"station {name}", now_us=moment_us)
                return
            added = recipe_versions.add(connection, name, content.model_dump(mode="json"), by="init", now_us=moment_us)
            # No line runs yet that could answer; the first one opens what is active.
            asked = recipe_versions.ask_activation(connection, added.id, by="init", now_us=moment_us)
            recipe_versions.answer(connection, asked.id, ActivationState.ACTIVE, now_us=moment_us)
            audit.append(connection, "init", "create", f"recipe {name} {added.version}", now_us=moment_us)
    finally:
        database.close()
