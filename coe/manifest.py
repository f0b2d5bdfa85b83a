"""What the store knows of an expert: its file, the blobs prepared from it, and how far each is to be trusted."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from coe.blob_format import Variant
from coe.profile import Agreement


class PreparedVariant(BaseModel):
    """A blob of an expert: its file, its size, the xxh3-128 of what comes before its data, and how far to trust it.

    `agreement` is that with the weights file as it came, in fp32. A finding whose margin is under `escalate_below` is
    to be run again in fp32; 0 means never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    bytes: int
    digest: str
    agreement: Agreement | None = None
    escalate_below: float = 0.0


class Manifest(BaseModel):
    """What the store knows of one expert. `bytes` and `checksum` (xxh3-128, hexadecimal) are those of `file`."""

    # A measure that is not a number is written as such, not as a null that could not be read back.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: Literal[1] = 1
    id: str
    kind: str
    labels: tuple[str, ...]
    input_size: int
    variant: Literal["fp32"] = "fp32"
    file: str
    bytes: int
    checksum: str
    metrics: dict[str, float] = {}
    source: str = ""
    created: str = ""
    variants: dict[Variant, PreparedVariant] = {}
