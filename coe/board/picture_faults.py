"""What can be wrong with the bytes of a picture, in sentences that say what to do."""

from __future__ import annotations

TRUNCATED = "is truncated: the file ends before the picture does; copy it again from the camera"
DAMAGED = "is damaged: its bytes do not add up to a picture; copy it again from the camera"
UNSUPPORTED = "uses a form of its format that is not supported; save it as PNG with 8 or 16 bits a channel"
UNWRITTEN = (
    "ends in zeros, as a file that was reserved and not written to its end; copy it again, or save it as PNG if it is "
    "black there"
)
