"""Types for files that are checked strictly when they are read: immutable, no unknown keys, numbers within bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Record(BaseModel):
    """A mapping in a file: immutable; an unknown key in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
