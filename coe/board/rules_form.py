"""The form of a board file: its keys and the types of their values; `coe.board.rules` gives them their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coe import config
from coe.errors import did_you_mean
from coe.strict_yaml import Place, Sheet

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Judging(_Model):
    """The keys with which a step judges its expert's findings; the expert's entry may give defaults for them."""

    min_score: Share | None = None
    min_scores: dict[str, Share] | None = None
    shares: dict[str, Share] | None = None
    then: dict[str, Any] | None = None


class StepSpec(Judging):
    """A place where an expert inspects."""

    inspect: str


class ComponentSpec(StepSpec):
    """A component type: its first step, its count on a board, and the name of its reference, or `given`."""

    count: Annotated[float, Field(ge=0, le=config.MAX_COMPONENTS, allow_inf_nan=False)] = 1.0
    reference: Name | None = None


class ExpertSpec(Judging):
    """An expert, and the defaults of every step that inspects with it."""

    kind: str
    labels: Annotated[list[str], Field(min_length=1, max_length=1000)]
    input: Annotated[int, Field(ge=config.MIN_INPUT, le=config.MAX_INPUT)]
    reject: list[str] = []
    weights: str | None = None
    temperature: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 1.0
    ignore_under: dict[str, Share] = {}


class BoardSpec(_Model):
    """A board file. With `stop_at_ng` an image that is NG is not looked at any further.

    `bits` says how many low bits of 16-bit samples count in its pictures.
    """

    board: Name
    bits: Annotated[int, Field(ge=config.MIN_SAMPLE_BITS, le=config.MAX_SAMPLE_BITS)] | None = None
    stop_at_ng: bool = False
    experts: Annotated[dict[Name, ExpertSpec], Field(min_length=1)]
    components: Annotated[dict[Name, ComponentSpec], Field(min_length=1)]


_M = TypeVar("_M", bound=BaseModel)
_MODELS: Mapping[str, type[BaseModel]] = {"experts": ExpertSpec, "components": ComponentSpec}


def checked(
    sheet: Sheet, model: type[_M], data: Mapping[str, Any], place: Place, inner: Mapping[str, type[BaseModel]] = _MODELS
) -> _M:
    """Return the data at a place of a sheet as a `model`; raises RulesError with file and line.

    `inner` are the models of the entries under the first words of a place, for suggestions.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelt key explains why another key is missing, so unknown keys come first.
        first = min(error.errors(), key=lambda complaint: complaint["type"] != "extra_forbidden")
        at: Place = (*place, *first["loc"])
        known = model if len(first["loc"]) == 1 else inner.get(str(at[0]), model)
        raise sheet.error(at, _sentence(known, first, at)) from None


def _sentence(known: type[BaseModel], error: Any, at: Place) -> str:
    """Return pydantic's complaint in the words of a file; `known` is the model at that place."""
    word = str(at[-1])
    if error["type"] == "extra_forbidden":
        return f"'{word}' is not a key here{did_you_mean(word, known.model_fields)}"
    if error["type"] == "missing":
        owner = f" of '{at[-2]}'" if len(at) > 1 else ""
        return f"'{word}'{owner} is missing"
    if error["type"] in ("model_type", "dict_type"):
        return f"'{word}' must hold entries of the form `key: value`"
    return f"{'.'.join(str(part) for part in at)}: {error['msg'][0].lower()}{error['msg'][1:]}, not {error['input']!r}"
