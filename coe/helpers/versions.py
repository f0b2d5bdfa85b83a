"""The versions of installed packages, ours among them."""

from __future__ import annotations

from importlib import metadata


def installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def own() -> str:
    """Return the version of CoE; "0+unknown" in a source tree that is not installed."""
    return installed("coe-vision") or "0+unknown"
