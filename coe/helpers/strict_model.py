"""The base of what is checked strictly as it is read, and the one sentence about what does not fit.

Files that people write, bodies of requests, and records of our own are models of this base: immutable, without unknown
keys, with numbers within bounds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coe.errors import CoeError, ConfigError, did_you_mean, join_errors, list_few
from coe.helpers.strict_yaml import KeyPath, YamlDocument
from coe.helpers.visible import visible

_NAME, _LONGEST_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", 100
Name = Annotated[str, Field(pattern=_NAME, max_length=_LONGEST_NAME)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_MOST_FAULTS, _SHOWN = 1000, 200
_EXPECTED = {"list_type": "a list, as [this, that]", "bool_parsing": "yes or no", "string_type": "a word"}
_EXPECTED |= {"tuple_type": _EXPECTED["list_type"], "float_parsing": "a number, as 0.8", "float_type": "a number"}
_EXPECTED |= {"int_parsing": "a whole number", "int_type": "a whole number", "finite_number": "a finite number"}
_EXPECTED |= {"greater_than_equal": "{ge:.15g} or more", "less_than_equal": "{le:.15g} or less"}
_EXPECTED |= {"greater_than": "more than {gt:.15g}", "less_than": "less than {lt:.15g}"}
"""By pydantic's types of faults: the value that belongs there."""


class StrictModel(BaseModel):
    """A mapping in a file or a message: immutable; an unknown key in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=StrictModel)


def of_yaml(document: YamlDocument, model: type[M], data: Any = None, path: KeyPath = ()) -> M:
    """Return the data at a place of a document, or all of it, as a model; raises RulesError with file, line and key."""
    return validated(model, document.data if data is None else data, document.error, path)


def of_json(data: Any, model: type[M]) -> M:
    """Return the JSON body of a request as a model; raises ConfigError that names the place and suggests."""
    if not isinstance(data, Mapping):
        raise ConfigError("the body must be a JSON object")
    return validated(model, data, lambda _, text: ConfigError(text))


def parsed_json(text: bytes | bytearray | str) -> Any:
    """Return the data of a JSON text, in which NaN is no number and no object has a key twice.

    Raises ValueError, or RecursionError for what is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_number, object_pairs_hook=_object)


def _refuse_number(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{visible(twice[:_SHOWN])}' occurs twice in one object")
    return data


def paths_from(model: M, folder: Path) -> M:
    """Return a model whose relative paths, also those of the models in it, count from a folder."""
    fields = type(model).model_fields
    return model.model_copy(update={name: _path_from(getattr(model, name), folder) for name in fields})


def _path_from(value: Any, folder: Path) -> Any:
    match value:
        case Path():
            return folder / value
        case StrictModel():
            return paths_from(value, folder)
        case dict():
            return {key: _path_from(part, folder) for key, part in value.items()}
        case tuple():
            return tuple(_path_from(part, folder) for part in value)
    return value


def validated(model: type[M], data: Any, error: Callable[[KeyPath, str], CoeError], path: KeyPath = ()) -> M:
    """Return data as a model; raises what `error` makes of the places that do not fit, all in one."""
    try:
        return model.model_validate(data)
    except ValidationError as faults:
        if faults.error_count() > _MOST_FAULTS:  # to list them all would take seconds
            raise error(path, f"{faults.error_count():,} entries do not fit") from None
        told = _told(faults.errors(), data)
        raise join_errors([error((*path, *fault["loc"]), _sentence(model, fault, path)) for fault in told]) from None


def _told(faults: Sequence[Any], data: Any) -> list[Any]:
    """Return one fault for each value that does not fit.

    What a union expects in the place of one value are several faults; those within the value say more. A misspelt key
    explains why another key is missing.
    """
    at = [(_place(fault, data), fault) for fault in faults]
    misspelt = {place[:-1] for place, fault in at if fault["type"] == "extra_forbidden"}
    told: dict[KeyPath, Any] = {}
    for place, fault in at:
        is_explained = fault["type"] == "missing" and place[:-1] in misspelt
        is_within = any(other[: len(place)] == place and len(other) > len(place) for other, _ in at)
        if not is_explained and not is_within:
            told.setdefault(place, fault)
    return list(told.values())


def _place(fault: Any, data: Any) -> KeyPath:
    """Return the keys and numbers by which a fault's value lies in the data; pydantic adds words for its types."""
    place: KeyPath = ()
    for part in fault["loc"]:
        is_key = isinstance(data, Mapping) and part in data
        is_item = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if is_key or is_item:
            place, data = (*place, part), data[part]
    return (*place, fault["loc"][-1]) if fault["type"] == "missing" else place


def _sentence(model: type[StrictModel], fault: Any, home: KeyPath) -> str:
    path: KeyPath = (*home, *fault["loc"])
    word, where, owner = (".".join(map(str, part))[:_SHOWN] for part in (path[-1:], path, path[:-1]))
    match fault["type"]:
        case "extra_forbidden":
            of = f" of '{owner}'" if owner else ""
            return f"'{word}' is not a key{of}{did_you_mean(word, _keys(model, fault['loc'][:-1]))}"
        case "missing":
            return f"'{where}' is missing"
        case _ if fault["input"] is None:
            return no_value(path)
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"'{where}' must hold entries of the form `key: value`"
        case "string_pattern_mismatch" if fault["ctx"]["pattern"] == _NAME:
            return f"{where.removesuffix('.[key]')}: {name_fault([fault['input']])}"
        case "too_short":
            return f"'{where}' needs {fault['ctx']['min_length']} or more entries"
    return f"{where}: {value_fault(fault)}"


def value_fault(fault: Any) -> str:
    """Return what a fault of pydantic says of a value, which the sentence names."""
    if fault["type"] in _EXPECTED:
        return f"write {_EXPECTED[fault['type']].format(**fault.get('ctx', {}))}, not {fault['input']!r:.100}"
    message = fault["msg"].removeprefix("Value error, ")
    given = "" if fault["type"] == "value_error" else f", not {fault['input']!r:.100}"
    return f"{message[:1].lower()}{message[1:]}{given}"


def no_value(path: KeyPath) -> str:
    """Return the sentence about a key, or an item of a list, behind which nothing stands."""
    place = ".".join(map(str, path))[:_SHOWN]
    if glued := re.search(r"([^.]+):(\S+)$", place):
        return f"'{glued[0]}' needs a space after its colon"
    return (
        f"'{place}' has no value: give one, or leave the key out (write lists in [ ]; quote null and ~ if they "
        "are words)"
    )


def _keys(annotation: Any, path: KeyPath) -> Iterable[str]:
    """Return the keys of the model at a place within an annotation; none if no model is there."""
    union = get_origin(annotation) in (Union, UnionType)
    for choice in get_args(annotation) if union else (annotation,):
        container = get_origin(choice)
        if isinstance(choice, type) and issubclass(choice, StrictModel):
            fields = {field.alias or name: field for name, field in choice.model_fields.items()}
            if not path:
                return fields
            if path[0] in fields:
                return _keys(fields[str(path[0])].annotation, path[1:])
        elif container in (dict, list, tuple) and path:
            return _keys(get_args(choice)[container is dict], path[1:])
    return ()


def name_fault(names: Iterable[str]) -> str:
    """Return what is wrong with names of components and experts, all of them in one sentence; "" if nothing is."""
    wrong = [name for name in names if len(name) > _LONGEST_NAME or not re.fullmatch(_NAME, name)]
    if not wrong:
        return ""
    named = list_few([f"'{visible(name)}'" for name in wrong])
    return f"{named} cannot be a name: use A to Z, digits and . _ + - (no spaces), at most {_LONGEST_NAME} of them"
