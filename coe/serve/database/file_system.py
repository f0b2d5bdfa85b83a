"""Which file systems can hold an embedded database. Law: SQLite's file lies on a disk of this machine."""

from __future__ import annotations

from pathlib import Path

import psutil

from coe.errors import ConfigError

NETWORK = frozenset(
    {
        "9p",
        "afs",
        "afp",
        "ceph",
        "cifs",
        "davfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "sshfs",
        "virtiofs",
    }
)
"""File systems whose locks do not hold between machines, or that do not share memory, which WAL needs."""


def refuse_network(path: Path) -> None:
    """Raise ConfigError if a file at a path would lie on a network file system."""
    kind = file_system_of(path)
    if kind.removeprefix("fuse.") in NETWORK:
        raise ConfigError(
            f"{path} lies on a network file system ({kind}), where SQLite's locks and its log do not hold; put the "
            "data on a local disk, or give a PostgreSQL database"
        )


def file_system_of(path: Path) -> str:
    """Return the kind of file system that holds a path, as "ext4"; empty if the system does not tell."""
    place = path.absolute().resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    # A later mount at the same place hides the earlier one.
    deepest = max(enumerate(mounts), key=lambda at: (len(Path(at[1].mountpoint).parts), at[0]), default=None)
    return deepest[1].fstype.lower() if deepest else ""
