"""`POST /api/v1/exports`: verified pictures as labelled folders, on the machine of the service."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from coe.serve import export_files
from coe.serve.clock import DAY_US
from coe.serve.database import audit
from coe.serve.export_files import FOLDER, MANIFEST, Export, ExportScope
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import ENGINEER, OperationRouter, Visit
from coe.serve.gate.recipe_routes import expect_recipe
from coe.serve.text_checks import Text
from coe.strict_model import StrictModel

router = OperationRouter()
_EXPORT = JsonForm("Export", Export, "counts left_out", {"folder": str, "manifest": str}, export="name")


class ExportRequest(StrictModel):
    """Answers of the last `days`; of one recipe's boards; and up to `good` good parts of each expert and label."""

    days: Annotated[int, Field(ge=1, le=36500)] = 30
    recipe: Text = ""
    good: Annotated[int, Field(ge=0, le=100_000)] = 500


@router.add(
    "POST",
    "/api/v1/exports",
    ENGINEER,
    body=ExportRequest,
    sends=_EXPORT,
    answers={201: "the folder; `coe-experts train --data FOLDER/EXPERT` takes each expert's part"},
)
async def post_export(visit: Visit) -> Mapping[str, Any]:
    """Write verified pictures as EXPERT/LABEL/PICTURE into a new folder of the service, with a manifest."""
    gate = visit.gate
    form: ExportRequest = visit.body.form
    await gate.read(lambda connection: expect_recipe(connection, form.recipe))
    now_us = gate.now_us()
    asked = ExportScope(now_us - form.days * DAY_US, now_us, form.recipe, form.good)
    folder = gate.config.data / FOLDER
    write = partial(export_files.export, gate.database, gate.pictures, folder, asked, now_us)
    made = await gate.keep(partial(write, limit_pixels=gate.config.limits.pixels))
    number = sum(sum(labels.values()) for labels in made.counts.values())
    detail = {"pictures": number, "recipe": form.recipe, "days": form.days}
    await gate.write(
        lambda connection: audit.append(
            connection, visit.caller, "export", made.name, now_us=gate.now_us(), detail=detail
        )
    )
    return _EXPORT(made, folder=str(folder / made.name), manifest=str(folder / made.name / MANIFEST))
