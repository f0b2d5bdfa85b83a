"""What may lie in the place of a file, and how it gets there."""

import os
import socket
from pathlib import Path


def _socket(path):
    # The name of a socket may have 100 letters.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


ODD = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "endless-device": lambda path: path.symlink_to("/dev/zero"),
    "empty-device": lambda path: path.symlink_to(os.devnull),
    "link-to-itself": lambda path: path.symlink_to(path.name),
    "link-to-nothing": lambda path: path.symlink_to("gone"),
    "link-to-a-folder": lambda path: path.symlink_to(path.parent),
    "socket": _socket,
    "empty": Path.touch,
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 64),
}


def replace(path, odd):
    path.unlink()
    ODD[odd](path)
