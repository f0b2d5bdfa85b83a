"""YAML read as plain words with line numbers: no tags, no aliases, no duplicate keys, bounded size and depth.

Every scalar stays the text that was written, so that a label `no` does not become a boolean, nor `1e3` a number. The
models that check the data turn text into numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml

from coe import config
from coe.errors import RulesError, first_line, join_errors, list_few, readable
from coe.helpers.spelling import composed

KeyPath = tuple[str | int, ...]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_LONGEST_MESSAGE = 1000
_QUOTES = "put a word with such characters in quotes"
_STRUCTURE = (
    "mapping values are not allowed|expected (key|<block end>|<document start>|'-' indicator)|"
    "could not find expected ':'"
)
_PLAIN_WORDS = (
    ("quoted scalar.*end of stream", True, "the quote that opens here is not closed"),
    ("expected ',' or", True, "the bracket that opens here is not closed, or a comma is missing before line {at}"),
    ("could not find expected ':'", True, "this line has no `key: value`"),
    ("<document start>", False, "the line above is not an entry of the form `key: value`"),
    ("unknown escape|hexdec", False, "a backslash in double quotes starts an escape sequence; use single quotes"),
    ("found unexpected ':'", False, "a colon needs a space after it"),
    ("cannot start any token", False, f"a word begins with a character that YAML reserves, such as @ or %; {_QUOTES}"),
    (_STRUCTURE, False, f"this line is indented differently from its neighbours, or has a colon too many; {_QUOTES}"),
    ("single document", False, "another document begins here; a file may have only one"),
)
"""What the reader's words mean, and whether the fault is where the reader began, not where it noticed it."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The data of a file as dicts, lists, strings and None, the line at which each place begins, and its SHA-256."""

    path: Path
    data: Any
    lines: dict[KeyPath, int]
    digest: str

    def error(self, place: KeyPath, message: str) -> RulesError:
        """Return an error that names the file and the line of a place, as `where` does."""
        return _error(self.path, self._line(place), message)

    def blank(self) -> list[KeyPath]:
        """Return the places that have no value."""
        return [place for place in self.lines if reduce(getitem, place, self.data) is None]

    def where(self, place: KeyPath) -> str:
        """Return the file and the line of a place, as "demo.yaml:14"."""
        return f"{self.path.name}:{self._line(place)}"

    def _line(self, place: KeyPath) -> int:
        at: KeyPath = ()
        for part in place:
            if (*at, part) in self.lines:  # pydantic adds words to a place
                at = (*at, part)
        return self.lines.get(at, 1)


def word_lists(module: str) -> Any:
    """Return the lists of words in the data file that lies beside a module, whose `__file__` is given."""
    return yaml.load(Path(module).with_suffix(".yaml").read_text(encoding="utf-8"), Loader=_Loader)


def read(path: Path, noun: str = "board file", needs: str = "board, experts and components") -> YamlDocument:
    """Read a file as it is written; raises RulesError with file and line if it is not the YAML of plain words.

    Messages call the file `noun`, and say that it needs `needs`.
    """
    return _parsed(path, content(path, noun), needs, lambda text: text)


def content(path: Path, noun: str = "board file") -> bytes:
    """Return the bytes of a file; raises RulesError, which calls the file `noun`."""
    with readable(f"{path}:", RulesError), path.open("rb") as file:
        raw = file.read(config.MAX_RULES_BYTES + 1)
    if len(raw) > config.MAX_RULES_BYTES:
        raise _error(path, 1, f"larger than {config.MAX_RULES_BYTES >> 20} MiB; this is not a {noun}")
    return raw


def parse(path: Path, raw: bytes, needs: str = "board, experts and components") -> YamlDocument:
    """Return the document in a file's bytes, with its words in NFC, so that labels meet; raises as `read` does."""
    return _parsed(path, raw, needs, composed)


def _parsed(path: Path, raw: bytes, needs: str, spelling: Callable[[str], str]) -> YamlDocument:
    try:
        text = spelling(raw.decode("utf-8-sig"))
        _refuse_cleverness(path, text)
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _error(path, line, "not UTF-8 text; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, why = _in_plain_words(text, error, mark.line + 1 if mark else 1)
        raise _error(path, line, f"not valid YAML: {why}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _error(path, line, f"not valid YAML: {first_line(error)}") from None
    if root is None:
        raise _error(path, 1, f"the file is empty; it needs {needs}")
    if not isinstance(root, yaml.MappingNode):
        raise _error(path, _line(root), f"write entries of the form `key: value`; it needs {needs}")
    lines: dict[KeyPath, int] = {}
    faults: list[RulesError] = []
    data = _plain(path, root, (), lines, faults)
    if faults:
        raise join_errors(faults)
    return YamlDocument(path, data, lines, hashlib.sha256(raw).hexdigest())


def digest_of_all(digests: Sequence[str]) -> str:
    """Return one SHA-256 for several, in their order; of one it is the same."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _error(path: Path, line: int, message: str) -> RulesError:
    """Return an error on one line of bounded length, whatever words from the file stand in it."""
    plain = "".join(character if character.isprintable() else "?" for character in message)
    if len(plain) > _LONGEST_MESSAGE:
        plain = plain[:_LONGEST_MESSAGE] + "..."
    return RulesError(f"{path.name}:{line}: {plain}")


def _in_plain_words(text: str, error: yaml.MarkedYAMLError, at: int) -> tuple[int, str]:
    """Return the line of a fault, which may stand above the line `at` where the reader noticed it, and what it is."""
    lines = text.splitlines()
    why = " ".join(filter(None, (error.context, error.problem)))
    begin = error.context_mark.line + 1 if error.context_mark else at
    blanks = [number for number, line in enumerate(lines, 1) if re.match(r" *(?:[-?] *)*[^\S ]", line)]
    indented = [number for number in blanks if number == at or lines[number - 1].strip()]
    if {begin, at} & {*indented}:  # a tab does no harm within brackets or a text
        more = f" (also line {list_few(map(str, indented[1:]))})" if indented[1:] else ""
        return indented[0], f"a tab or another whitespace character is used instead of spaces{more}"
    if re.search(_STRUCTURE, why):
        filled = [(number, line) for number, line in enumerate(lines[:at], 1) if re.match(r"\s*[^\s#]", line)]
        for number, line in filled[-2:]:
            if glued := re.match(r"\s*(?:- )?([^\W\d][\w.+-]*:(?!//|\\)(?:\S+|[^\S ].*))$", line):
                return number, f"'{glued[1]}' needs a space after its colon"
    for words, is_at_begin, sentence in _PLAIN_WORDS:
        if re.search(words, why):
            return begin if is_at_begin else at, sentence.format(at=at)
    return at, why


def _refuse_cleverness(path: Path, text: str) -> None:
    """Refuse aliases, tags and deep nesting, which plain words do not need, before anything is built."""
    depth = 0
    faults = []
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            faults.append(_error(path, _line(event), f"'*{event.anchor}' is an alias; write the entry out"))
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            faults.append(_error(path, _line(event), f"'{event.tag}' is a tag; write plain words, without '!'"))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > config.MAX_RULES_DEPTH:
                raise _error(path, _line(event), f"nested deeper than {config.MAX_RULES_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    if faults:
        raise join_errors(faults)


def _line(marked: yaml.Event | yaml.Node) -> int:
    return marked.start_mark.line + 1 if marked.start_mark else 1


def _plain(path: Path, node: yaml.Node, place: KeyPath, lines: dict[KeyPath, int], faults: list[RulesError]) -> Any:
    """Return the plain data of a node; note the line of each place, and keys that are none or stand twice."""
    lines[place] = _line(node)
    if isinstance(node, yaml.MappingNode):
        data: dict[str, Any] = {}
        for key, value in node.value:
            line = _line(key)
            if key.tag == _MERGE:
                faults.append(_error(path, line, "'<<' merges entries; write them out"))
            elif not isinstance(key, yaml.ScalarNode):
                faults.append(_error(path, line, "a key must be a single word"))
            elif key.value in data:
                first = lines[(*place, key.value)]
                faults.append(_error(path, line, f"'{key.value}' occurs twice; the first is on line {first}"))
            else:
                data[key.value] = _plain(path, value, (*place, key.value), lines, faults)
                lines[(*place, key.value)] = line
        return data
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, value, (*place, index), lines, faults) for index, value in enumerate(node.value)]
    return None if node.tag == _NULL else node.value
