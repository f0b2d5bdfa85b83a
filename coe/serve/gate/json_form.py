"""JSON answers. One form makes an answer of a record, and describes it in `/openapi.json`, so that both agree."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from inspect import getattr_static
from typing import Any, get_type_hints

from pydantic import Field, create_model

from coe.serve.clock import iso


class JsonForm:
    """A JSON object: fields of a record, and what stands beside them.

    `names` are fields of the record, with blanks between them, as in `namedtuple`; those of `renamed` have other names
    in JSON. Times, as `seen_us`, are written out as `seen`. `more` has the types of what else there is, `maybe` of what
    may be missing. `one` is the type of such an object, `many` of a list of them, for `more` of another form.
    """

    def __init__(
        self,
        title: str,
        record: type | None = None,
        names: str = "",
        more: Mapping[str, Any] = {},
        maybe: Mapping[str, Any] = {},
        **renamed: str,
    ) -> None:
        fields = {name: name for name in names.split()} | renamed
        self._plain = {key: name for key, name in fields.items() if not name.endswith("_us")}
        self._times = {key.removesuffix("_us"): name for key, name in fields.items() if name.endswith("_us")}
        self._more, self._maybe = set(more), set(maybe)
        types = {key: _type_of(record, name) for key, name in (self._plain | self._times).items()}
        needed = {key: (kind, ...) for key, kind in {**types, **more}.items()}
        optional: dict[str, Any] = {key: (kind, Field(default_factory=dict)) for key, kind in maybe.items()}
        make: Any = create_model  # names of fields are known at runtime alone
        one = make(title, **needed, **optional)
        self.one: Any = one
        self.many: Any = list[one]  # type: ignore[valid-type]

    def __call__(self, row: Any = None, **more: Any) -> dict[str, Any]:
        """Return a record as JSON, with what stands beside its fields."""
        assert self._more <= set(more) <= self._more | self._maybe, (self.one.__name__, sorted(more))
        plain = {key: getattr(row, name) for key, name in self._plain.items()}
        moments = {key: getattr(row, name) for key, name in self._times.items()}
        return plain | {key: None if us is None else iso(us) for key, us in moments.items()} | more


_BOX = JsonForm("Box", more={"label": str, "score": float | None, "xyxy": list[float | None]})
_HEAT = JsonForm("Heat", more={"rows": int, "columns": int, "values": str})
_LIKENESS = JsonForm("Likeness", more={"side": int, "pixels": str, "box": list[float]})
FINDING = JsonForm(
    "Finding",
    more={"expert": str, "label": str, "score": float | None},
    maybe={
        "variant": str,
        "boxes": _BOX.many,
        "doubt": str,
        "heat": _HEAT.one,
        "likeness": _LIKENESS.one,
        "read": str,
        "allowed": list[str],
        "reference": str,
        "caution": str,
    },
)
"""A row of `Finding.to_dict` (`coe.core`), as boards and calls hold it; bytes are in base64."""


def _type_of(record: type | None, name: str) -> Any:
    hints = get_type_hints(record)
    kind = hints[name] if name in hints else get_type_hints(getattr_static(record, name).fget)["return"]
    if not name.endswith("_us"):
        return kind
    return datetime if kind is int else datetime | None
