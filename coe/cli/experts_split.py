"""`coe-experts split`: which photographs are to learn from, to verify with, and to test on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from coe.cli.common import Exit, out, point_out, wide
from coe.cli.console import table_of
from coe.cli.tool_options import SeedOption
from coe.errors import ConfigError
from coe.pictures import photographs, split_making
from coe.pictures.photo_split import SPLIT, Purpose, Split


def split(
    photos: Annotated[Path, typer.Argument(help="Photographs: <component>/<label>/<image>.")],
    verify: Annotated[
        float, typer.Option(min=0, max=0.9, help="The share of pictures to verify with: `calibrate` takes them.")
    ] = 0.2,
    test: Annotated[
        float, typer.Option(min=0, max=0.9, help="The share of pictures to test on: `evaluate` takes them.")
    ] = 0.2,
    group: Annotated[
        str,
        typer.Option(
            help="A regular expression that finds in a path what pictures of one part have in common, as '(SN[0-9]+)'. "
            "Default: the component and the file's name up to '__'."
        ),
    ] = "",
    seed: SeedOption = 0,
) -> None:
    """Write PHOTOS/split.csv: which pictures are to learn from, to verify with, and to test on.

    Pictures of one part stay together. What the file says of a picture stays: run it again after pictures were added.
    `reference` and `train` then take the pictures to learn from, `calibrate` those to verify with, `evaluate` those to
    test on.

    Example: coe-experts split photos
    """
    if verify + test >= 1:
        raise ConfigError(f"--verify {verify:g} and --test {test:g} leave nothing to learn from")
    if (photos / "train").is_dir():
        raise ConfigError(f"{photos} has a folder 'train', which says already what its pictures are for")
    found = photographs.of_components(photos)
    before = Split.beside(photos)
    shares = {Purpose.LEARN: 1 - verify - test, Purpose.VERIFY: verify, Purpose.TEST: test}
    after = split_making.extended(photos, found, shares, pattern=group, seed=seed)
    split_making.write(after)
    counts: dict[tuple[str, str], Counter[Purpose]] = {}
    for one in found:
        counts.setdefault((one.component, one.label), Counter())[after.rows[after.name_of(one.path)].purpose] += 1
    table = table_of("component", "label", *(f"to {purpose}" for purpose in Purpose), left=("component", "label"))
    for (component, label), of_purpose in counts.items():
        table.add_row(component, label, *(str(of_purpose[purpose]) for purpose in Purpose))
    wide(out).print(table)
    if before is not None and (gone := sorted(set(before.rows) - set(after.rows))):
        point_out("note", f"{len(gone)} pictures are not there any more, such as {gone[0]}")
    groups = len({row.group for row in after.rows.values()})
    out.print(f"{photos / SPLIT}: {len(found)} pictures in {groups} groups")
    raise typer.Exit(Exit.OK)
