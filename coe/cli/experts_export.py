"""`coe-experts export`: the whole weights of an expert come out of the store again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.cli.common import out
from coe.cli.options import StoreOption
from coe.errors import ConfigError
from coe.store import bodies
from coe.store.store import Store


def export(
    id: Annotated[str, typer.Argument(help="An expert of the store, as BOARD/NAME.")],
    file: Annotated[Path, typer.Argument(help="The file to write; a file that is there is replaced.")],
    store: StoreOption = None,
) -> None:
    """Write the weights of an expert as one plain file, with the layers that it shares with others.

    Example: coe-experts export demo/chip-resistor chip-resistor.safetensors
    """
    shelf = Store(store)
    shelf.manifest(id)
    try:
        bodies.export(shelf, id, file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}; give another place") from error
    out.print(f"{id}: {config.format_bytes(file.stat().st_size)} in {file}")
