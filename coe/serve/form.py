"""Strict forms of what people write: YAML files with the line of each fault, and JSON bodies with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from coe.errors import ConfigError, did_you_mean
from coe.strict_yaml import Place, Sheet


class Form(BaseModel):
    """A mapping that somebody wrote: immutable; an unknown key in it is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_F = TypeVar("_F", bound=Form)
_MOST_FAULTS, _SHOWN = 1000, 200


def of_sheet(sheet: Sheet, form: type[_F]) -> _F:
    """Return a file's data as a form; raises RulesError with file, line and suggestion."""
    if not isinstance(sheet.data, dict):
        raise sheet.error((), "write entries of the form `key: value`")
    try:
        return form.model_validate(sheet.data)
    except ValidationError as error:
        complaint = _first(error)
        raise sheet.error(tuple(complaint["loc"]), _sentence(form, complaint)) from None


def of_json(data: Any, form: type[_F]) -> _F:
    """Return JSON data as a form; raises ConfigError that names the place and suggests."""
    if not isinstance(data, Mapping):
        raise ConfigError("the body must be a JSON object")
    try:
        return form.model_validate(data)
    except ValidationError as error:
        if error.error_count() > _MOST_FAULTS:  # to list them all would take seconds
            raise ConfigError(f"{error.error_count():,} entries of the body do not fit; see /openapi.json") from None
        raise ConfigError(_sentence(form, _first(error))) from None


def paths_from(form: _F, folder: Path) -> _F:
    """Return a form whose relative paths, also those of the forms in it, count from a folder."""
    return form.model_copy(update={name: _path_from(getattr(form, name), folder) for name in type(form).model_fields})


def _path_from(value: Any, folder: Path) -> Any:
    match value:
        case Path():
            return folder / value
        case Form():
            return paths_from(value, folder)
        case dict():
            return {key: _path_from(part, folder) for key, part in value.items()}
        case tuple():
            return tuple(_path_from(part, folder) for part in value)
    return value


def _first(error: ValidationError) -> Any:
    # A misspelt key explains why another key is missing, so unknown keys come first.
    return min(error.errors(), key=lambda complaint: complaint["type"] != "extra_forbidden")


def _sentence(form: type[Form], complaint: Any) -> str:
    place: Place = tuple(complaint["loc"])
    word, where = (str(place[-1]) if place else "")[:_SHOWN], ".".join(map(str, place))[:_SHOWN]
    if complaint["type"] == "extra_forbidden":
        owner = f" of '{place[-2]}'" if len(place) > 1 else ""
        return f"'{word}' is not a key{owner}{did_you_mean(word, _keys(form, place[:-1]))}"
    if complaint["type"] == "missing":
        return f"'{where}' is missing"
    if complaint["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"'{where}' must hold entries of the form `key: value`"
    message = complaint["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}" + (
        "" if complaint["type"] == "value_error" else f", not {str(complaint['input'])[:100]!r}"
    )


def _keys(form: type[Form], place: Place) -> list[str]:
    """Return the keys that a form has at a place; none if the place is no form."""
    annotation: Any = form
    for part in place:
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif (model := _form_of(annotation)) is not None and part in model.model_fields:
            annotation = model.model_fields[str(part)].annotation
    model = _form_of(annotation)
    return list(model.model_fields) if model else []


def _form_of(annotation: Any) -> type[Form] | None:
    """Return the form in an annotation, as in `Form` or `Form | None`."""
    for choice in (annotation, *get_args(annotation)):
        if isinstance(choice, type) and issubclass(choice, Form):
            return choice
    return None
