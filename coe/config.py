"""All defaults. An option, a rule or an argument can override each of them; none changes at run time."""

from __future__ import annotations

import math
import os
import re

from coe.errors import ConfigError, shortened

# Images
MAX_IMAGE_PIXELS = 100_000_000
"""A picture with more pixels is refused before it is decoded: it may be a decompression bomb."""
MEGAPIXELS_VARIABLE = "COE_MAX_MEGAPIXELS"
"""This variable replaces MAX_IMAGE_PIXELS, in millions of pixels."""
READ_TIMEOUT_S = 9.0
"""How long a piece of a picture's file is waited for: then its image is an error, because its disk does not answer.

A service shows it within 10 s."""
READ_TIMEOUT_VARIABLE = "COE_READ_TIMEOUT"
"""This variable replaces READ_TIMEOUT_S, as in 5s or 2min."""
BLACK_ENDS_VARIABLE = "COE_BLACK_ENDS"
"""With 1, uncompressed BMP and TIFF files may end in zeros: cameras of this place see black at an edge."""
MIN_SAMPLE_BITS, MAX_SAMPLE_BITS = 8, 16
"""The least and the largest number of low bits that may count in samples of 16 bits."""
MIN_INPUT, MAX_INPUT = 8, 4096
"""The smallest and the largest side of an expert's square input, in pixels."""
CHOSEN_KINDS = ("probe", "patch", "efficientnet-lite0")
"""The kinds among which `coe-experts choose` chooses; among equals the first."""
CHOSEN_INPUT = (64, 224)
"""The least and the largest side of the input that it gives them, in pixels."""
CHOSEN_EPOCHS = 6
"""How many epochs a kind learns there that counts in epochs."""
MIN_IMAGE_SIDE = 8
"""A picture with a smaller width or height, in pixels, cannot be judged."""

# Report
REPORT_PICTURES = 200
"""How many NG and REVIEW images report.html shows; the worst first."""
REPORT_BOARDS, REPORT_BOARD_SIDE = 12, 1000
"""How many whole boards a report shows at most, and the longer side of their pictures in pixels."""
REPORT_PICTURE_SIDE = 480
"""The longest side of such a picture in pixels."""

# Options
MAX_THREADS = 1024
"""The most threads of an executor: a mistyped number must not start a million."""
MIN_LOADED, MAX_LOADED = 1e-3, 1e6
"""The least and the largest number of experts of mean size that an option may reserve memory for."""
MAX_INBOX = 1_000_000
"""The largest number of images under way that an option may allow."""
MAX_SEED = 2**32 - 1
"""The largest seed that all generators of random numbers accept; the smallest is 0."""
MAX_COUNT = 10_000_000
"""The largest value of any other option that counts: images, experts, epochs, repetitions."""
MAX_BYTES = 1 << 60
"""More bytes, or bytes a second, than any machine has: larger amounts would overflow in arithmetic."""

# Errors
MAX_ERROR = 10_000
"""The most characters of an image's error that results.jsonl keeps."""
SHOWN_ERROR = 500
"""The most characters of an error that the terminal shows."""

# Places
RULES_VARIABLE = "COE_RULES"
RULES_FOLDER = "routing_rules"
STORE_VARIABLE = "COE_STORE"
STORE_FOLDER = "store"
RUNS_FOLDER = "runs"
KEPT_VERSIONS = 5
"""How many earlier versions of an expert, and of a reference, a store keeps; one while its disk is nearly full."""
KEPT_VERSIONS_VARIABLE = "COE_KEEP_VERSIONS"
"""This variable replaces KEPT_VERSIONS; 0 keeps none."""
PROFILE_VARIABLE = "COE_PROFILE"
TRACEBACK_VARIABLE = "COE_TRACEBACK"
"""If this variable is set, an unexpected error shows its traceback."""

# Board files
MAX_RULES_BYTES = 4 << 20
MAX_RULES_DEPTH = 64

MAX_COMPONENTS = 1e6
"""The largest count of a component on a board."""

# Precision
PRECISION = "fp32"
LABEL_FLOOR = 0.999
"""A variant is used only if at least this share of its labels agrees with fp32."""
ESCALATED_SHARE = 0.02
"""The expected share of a lesser variant's findings that are run again, until it has been measured."""
AGAIN_AT_MOST = 0.5
"""A variant is used only if no larger share of the pictures that it was prepared with would be looked at twice."""

# Engine
STRATEGY = "late-binding"
EXECUTORS = "cpu=1"
MEMORY = "2GiB"
DEVICE_SHARE = 0.8
"""The part of a GPU's free memory that is used if no amount is given."""
HOST_MEMORY = "4GiB"
"""Host memory that keeps copies of experts for a GPU; never more than half of what is free."""
INBOX_IMAGES = 256
"""How many images may be under way before `submit` blocks or raises."""
INBOX_BYTES = 512 << 20
"""The most bytes of images and prepared inputs under way; a single larger image is still accepted."""
INBOX_SHARE = 0.125
"""The part of the memory budget that images under way may take, if that is less than INBOX_BYTES."""
GROUP_HOLD_S = 30.0
"""How long a group takes in new stages after its first batch; later stages start a new group at the end."""
PREFETCH_GROUPS = 32
"""How many groups of a backlog a prefetch policy looks at, so that a long backlog costs no more than a short one."""
USAGE_IMAGES = 8000
"""How many images the rules' usage probability counts as; the estimate from arrivals forgets at that pace (line)."""
DRIFTED_EXPERTS = 5
"""How many experts are listed, of those whose estimated usage differs most from the rules'."""
DRIFT = 0.01
"""The least difference that the terminal shows: 0.01 is one image in a hundred."""
OUTLOOK_IMAGES = 100
"""The number of coming images over which the expected use of an expert is counted (line)."""
GAIN_IMAGES_EACH = 20
"""Over how many coming images, for each expert of the line, a load looks whether its expert is needed again (line)."""
LOADS_AHEAD = 3
"""For how many loads after the present one executors make room at most, however long their batches take (line)."""
LOAD_CANDIDATES = 4
"""How many absent experts a device considers, to find one that it should load rather than another device (line)."""
AHEAD_S = 10.0
"""How far ahead foreseen experts are loaded while the disk idles (line); 80 s makes 1.3 to 1.45 times the loads."""
MAX_WAIT_S = 600.0
"""How long after its submission an image is due (line); after half of that time it is in a hurry."""
LOAD_ATTEMPTS = 2
"""After this many failed loads of an expert, its stages are answered with an error."""
RETRY_BROKEN_S = 60.0
"""How long an expert whose loads failed is left alone before the next attempt."""
CORES_TRUSTED_S = 10.0
"""How long lines that open later trust the number of free cores that a line found."""
CORES_WATCHED_S = 0.5
"""How long a line watches the cores before it shares those that are free among its executors."""
PACE_BATCHES = 9
"""The last batches of a device whose times tell how fast it is; after a change, that many more are needed."""
PACE_STEP = 1.25
"""Costs are corrected once batches take this many times as long, or as short, as expected."""
LIKELY = 0.5
"""The share of a component's images from which on their inputs for an expert are made when they are decoded."""
LITTLE_GAIN = 0.05
"""Larger batches are useful as long as they lower the average latency by at least this share."""
WORKSPACE_SHARE = 0.25
"""The largest part of a pool that is set aside for activations (the paper's casual split, section 5.2)."""

STOPPED = "the run was stopped before this image was inspected"
"""The error of images that had no result when the run was stopped."""

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def image_pixels() -> int:
    """Return how many pixels a picture may have; raises ConfigError for a limit of the user that is none."""
    text = os.environ.get(MEGAPIXELS_VARIABLE, "")
    if not text:
        return MAX_IMAGE_PIXELS
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", text) or float(text) <= 0:
        raise ConfigError(
            f"${MEGAPIXELS_VARIABLE}: '{shortened(text, 40)}' is not a number of megapixels; write it like 250"
        )
    return round(float(text) * 1e6)


def kept_versions() -> int:
    """Return how many earlier versions a store keeps; raises ConfigError for a setting that is no number."""
    text = os.environ.get(KEPT_VERSIONS_VARIABLE, "")
    if not re.fullmatch(r"[0-9]{0,6}", text):
        raise ConfigError(
            f"${KEPT_VERSIONS_VARIABLE}: '{shortened(text, 40)}' is not a number of versions; write it like 5"
        )
    return int(text) if text else KEPT_VERSIONS


def black_ends() -> bool:
    """Return whether uncompressed pictures may end in zeros; raises ConfigError for a setting that is none."""
    text = os.environ.get(BLACK_ENDS_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise ConfigError(f"${BLACK_ENDS_VARIABLE}: '{shortened(text, 40)}' is neither 0 nor 1")
    return text == "1"


def read_timeout_s() -> float:
    """Return how many seconds a piece of a picture is waited for; raises ConfigError for a time that is none."""
    text = os.environ.get(READ_TIMEOUT_VARIABLE, "")
    try:
        seconds = parse_seconds(text) if text else READ_TIMEOUT_S
    except ConfigError as error:
        raise ConfigError(f"${READ_TIMEOUT_VARIABLE}: {error}") from None
    if not seconds:
        raise ConfigError(f"${READ_TIMEOUT_VARIABLE}: '{text[:40]}' is not above 0; give a time, like 30s")
    return seconds


def parse_bytes(text: str) -> int:
    """Read an amount of memory such as "1.5GiB", "800MB" or "123456"; raises ConfigError.

    Units are B, KB, MB, GB (powers of 1000) and KiB, MiB, GiB (powers of 1024), in any case.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ConfigError(
            f"'{shortened(text, 40)}' is not an amount of memory; write it like 1.5GiB, 800MB or 2000000000"
        )
    amount = int(min(float(match[1]) * _UNITS[match[2].lower()], 2 * MAX_BYTES))
    if amount > MAX_BYTES:
        raise ConfigError(f"'{shortened(text, 40)}' is more memory than any machine has; write it like 1.5GiB")
    if amount <= 0:
        raise ConfigError(f"'{text}' is not above 0; give an amount of memory, like 1.5GiB")
    return amount


def parse_seconds(text: str) -> float:
    """Read a time such as "5s", "250ms", "2min" or "5" (seconds); raises ConfigError."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|min|)\s*", text)
    if not match:
        raise ConfigError(f"'{text[:40]}' is not a time; write it like 5s, 250ms or 2min")
    return float(match[1]) * {"ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}[match[2]]


def parse_bandwidth(text: str) -> int:
    """Read bytes a second such as "530MB/s" or, with the same meaning, "530MB"; raises ConfigError."""
    try:
        return parse_bytes(re.sub(r"\s*/\s*s\s*$", "", text))
    except ConfigError:
        raise ConfigError(f"'{shortened(text, 40)}' is not a disk bandwidth; write it like 530MB/s") from None


def format_bytes(amount: float) -> str:
    """Write an amount of memory for people: "1.50 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def percent(share: float | None) -> str:
    """Write a share for people; a share is never rounded up to 100 % or down to 0 %."""
    if share is None or not math.isfinite(share):
        return "–"
    percent = round(100 * share, 1)
    if share < 1:
        percent = min(percent, 99.9)
    if share > 0:
        percent = max(percent, 0.1)
    return f"{percent:g}\N{NO-BREAK SPACE}%"


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun for people: "1 part", "1,200 parts"; `many` where the noun takes no s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def is_gpu(device: str) -> bool:
    """Tell whether a device's name is that of a GPU: "cuda", or "cuda:1" for the second one."""
    return device.partition(":")[0] == "cuda"


def parse_executors(text: str) -> dict[str, int]:
    """Read executors by device such as "cpu=2" or "cuda:0=2,cuda:1=2"; raises ConfigError."""
    executors: dict[str, int] = {}
    for part in text.split(","):
        device, equals, count = part.strip().partition("=")
        if not device or (equals and not (count.isdecimal() and len(count) <= 9)):
            raise ConfigError(f"'{shortened(text, 40)}' does not name executors; write it like cpu=2")
        if device in executors:
            raise ConfigError(f"'{shortened(text, 40)}' names the device '{shortened(device, 40)}' twice")
        executors[device] = int(count) if equals else 1
        if not 1 <= executors[device] <= 64:
            raise ConfigError(
                f"'{shortened(text, 40)}': the number of executors of '{shortened(device, 40)}' must lie between 1 and "
                "64"
            )
    if "cuda" in executors and (numbered := [device for device in executors if is_gpu(device) and device != "cuda"]):
        raise ConfigError(
            f"'{shortened(text, 40)}' names a GPU with a number and one without; write cuda:0 beside {numbered[0]}"
        )
    return executors
