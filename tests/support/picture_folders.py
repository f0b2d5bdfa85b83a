"""Folders of pictures, as tests of finding them need."""

import io

import numpy as np
from PIL import Image


def write(path, content=b""):
    """Write a file, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make(folder, *names):
    """Write empty files into a folder, and return the folder."""
    for name in names:
        write(folder / name)
    return folder


def saved(folder, *pictures):
    """Save pictures as 00.png, 01.png and so on, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png", compress_level=1)
    return folder


def encoded(form="PNG", picture=None):
    """Return the file of a picture, of noise if none is given."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(1, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise if picture is None else picture).save(file, form)
    return file.getvalue()
