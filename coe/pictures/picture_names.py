"""What the name of a file says of a picture. An ending never makes a picture go unseen; it only explains.

An upload under way has another name than the picture that it will be, and cameras write formats that are not read. So
every file counts as a picture that lies where one belongs, but those that only go with pictures: notes, tables,
what the system writes. The content decides how a file is read, and whether it can be.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from pathlib import Path

from coe.helpers import regular
from coe.pictures.formats import EXTENSIONS, Png, format_of
from coe.pictures.jpeg import Jpeg
from coe.pictures.tiff import Tiff

_WORDS = """
mpo apng dib webp gif jp2 j2k jpx jxl jxr jls heic heif avif hdr exr tga ppm pgm pbm pnm pcx psd svg pdf ico fits dcm
/ raw dng nef nrw arw sr2 srf cr2 cr3 crw raf orf rw2 rwl pef srw 3fr iiq erf kdc dcr mos mrw x3f gpr
/ txt json jsonl xml csv tsv xmp yaml yml toml ini md html log db md5 sha1 sha256 sha512 crc
doc docx xls xlsx ods odt ppt pptx rtf mov mp4 m4v avi mkv lrv wav
/ part partial tmp temp filepart crdownload download opdownload upload uploading incomplete swp lock
"""
_FOREIGN, _RAW, _ASIDE, _UNFINISHED = (frozenset(words.split()) for words in _WORDS.split("/"))
_OTHERS = _FOREIGN | _RAW
"""Endings of pictures that are not read (raw ones of cameras among them), of files that go with pictures, and of files
that are not finished."""
_PICTURES = _OTHERS | {ending[1:] for ending in EXTENSIONS}
"""Endings of pictures, read or not: a file with one of them is a picture wherever it lies."""
RAW_BESIDE = "is a raw picture beside a picture of the same name that is read"
_SURE = (*Jpeg.signatures, *Png.signatures, *Tiff.signatures)
"""The first bytes of formats. Those of BMP, "BM", may begin a text."""
_SYSTEMS = (b"\0\5\x16\7", b"b0VIM")
"""The first bytes of hidden files that programs put beside files: AppleDouble, and vim's swap files."""
_LOOKED_AT = 512
"""How many bytes tell whether a file is a text."""
_TEXT = bytes({7, 8, 9, 10, 11, 12, 13, 27, *range(32, 127), *range(128, 256)})


def stem(name: str) -> str:
    """Return the name of the picture that a file is, or will be, without endings.

    It is R1__C5 for R1__C5.png, R1__C5.png.part, R1__C5.PNG~ and .in.R1__C5.png. (a hidden upload).
    """
    parts = bare(name).split(".")
    if len(parts) > 1:
        parts.pop()
    while len(parts) > 1 and parts[-1].lower() in _PICTURES:
        parts.pop()
    return ".".join(parts)


def bare(name: str) -> str:
    """Return a file's name without the marks of a hidden or a temporary file."""
    shown = name.removeprefix(".in.").lstrip(".") if name.startswith(".") else name
    return shown.rstrip("~#") or name


def is_called_picture(name: str) -> bool:
    """Tell whether one of the endings is a picture's, as in x.png, x.CR2 and .x.png.Xb12."""
    return any(word.rstrip("~#") in _PICTURES for word in name.lower().split(".")[1:])


def is_temporary(name: str) -> bool:
    """Tell whether a file is an upload under way, or another temporary file, by its ending."""
    return name.endswith(("~", "#")) or _ending(name) in _UNFINISHED


def unfinished(name: str) -> str:
    """Return why a file is not the picture that its name is about, as the end of a sentence; "" if it may be."""
    if name.startswith("."):
        why = "is hidden"
    elif is_temporary(name):
        why = "is a temporary file"
    elif _ending(name) not in _PICTURES and is_called_picture(name):
        why = f"has '.{_ending(name)}' after a picture's extension"
    else:
        return ""
    return f"{why}, like an upload under way or an old copy; wait for the picture, or remove the file"


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name.strip(".") else ""


def goes_with_pictures(path: Path) -> bool:
    """Tell whether a file is a note, a table, a film or a system's file, and holds no picture.

    Its ending says so, or that it is a text and is not called a picture, as a README or a copy of a note.
    """
    start = _start(path)
    if path.name.startswith(".") and start.startswith(_SYSTEMS):
        return True
    if path.suffix[1:].lower() in _ASIDE:
        return not start.startswith(_SURE)
    return not is_called_picture(path.name) and _is_text(start)


def raw_beside(paths: Iterable[Path]) -> frozenset[Path]:
    """Return the raw pictures of which the camera wrote a picture that is read, too: of one name, in one folder."""
    paths = list(paths)
    read = {path.with_suffix("") for path in paths if path.suffix.lower() in EXTENSIONS}
    return frozenset(path for path in paths if path.suffix[1:].lower() in _RAW and path.with_suffix("") in read)


def holds_picture(path: Path) -> bool:
    """Tell whether a file begins as a JPEG, a PNG or a TIFF does."""
    return _start(path).startswith(_SURE)


def other_format(path: Path) -> str:
    """Return why a file with an unusual ending is not read, as the end of a sentence; "" if its content may be.

    Raw pictures of cameras are TIFFs whose first picture is small: a part would be judged by its thumbnail.
    """
    ending = path.suffix.lower()
    if ending in EXTENSIONS:
        return ""
    form = format_of(_start(path))
    if form is Tiff:
        return f"is a TIFF with the extension '{ending}'; save it as PNG"
    is_other = form is None and ending[1:] in _OTHERS
    return f"is a picture in an unsupported format ({ending}); save it as PNG" if is_other else ""


def _start(path: Path) -> bytes:
    """Return the first bytes of a file; none if it cannot be read: whoever reads it as a picture says why."""
    try:
        with regular.opened(path) as number:
            return os.read(number, _LOOKED_AT)
    except (OSError, ValueError):
        return b""


def _is_text(start: bytes) -> bool:
    """Tell whether bytes are UTF-8 without control characters; those of an empty file are not."""
    if not start or start.translate(None, _TEXT):
        return False
    try:
        # The last character may be cut off.
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True
