"""The section `sinks` of a config: which kinds of sinks stand there, and the sinks that they make.

If a package or a secret is missing, the start fails with one sentence that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field, create_model, model_validator

from coe import plugins
from coe.errors import CoeError, ConfigError
from coe.serve.bridge.sink_settings import Host
from coe.serve.bridge.sinks import Origin, Sink, SinkSettings
from coe.strict_model import Name, StrictModel
from coe.strict_yaml import KeyPath

GROUP = "coe.sinks"
MakeError = Callable[[KeyPath, str], CoeError]
"""Makes an error of a place in a file, and a sentence."""


class Sinks(StrictModel):
    """Those who are told what happens: `model_of` adds a key for each kind, with its sinks by names of your choice.

    Webhooks go to `hosts` alone: a URL that somebody mistypes, or puts in, tells nobody else.
    """

    hosts: tuple[Host, ...] = ()
    cfx_handle: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")] | None = None
    """The name of the station in messages of IPC-CFX, as `VENDOR.MODEL.SERIAL`; the station's own name if not given."""

    @model_validator(mode="after")
    def _are_clear(self) -> Sinks:
        twice = [name for name, number in Counter(self.names).items() if number > 1]
        if twice:
            raise ValueError(f"two sinks have the name '{twice[0]}'; give each a name of its own")
        for _, name, sink in self.listed():
            sink.check(name, self)
        return self

    def listed(self) -> Iterator[tuple[str, str, SinkSettings]]:
        """Yield each sink: its kind, its name, its settings."""
        for kind in type(self).model_fields:
            sinks = None if kind in Sinks.model_fields else getattr(self, kind)
            named = {kind: sinks} if isinstance(sinks, SinkSettings) else sinks or {}
            for name, sink in named.items():
                yield kind, name, sink

    @property
    def names(self) -> list[str]:
        """The names of all sinks, in their order."""
        return sorted(name for _, name, _ in self.listed())


def model_of(section: Any, error: MakeError = lambda _, text: ConfigError(text)) -> type[Sinks]:
    """Return the model of a section with these kinds of sinks; `error` makes the error of a kind that cannot be used.

    No other kind is imported: their names are keys without a value, which are suggested for a misspelt key.
    """
    written = set(section) - Sinks.model_fields.keys() if isinstance(section, Mapping) else set()
    fields: dict[str, Any] = dict.fromkeys(plugins.names(GROUP), (None, None))
    for name in written:
        if name in fields or ":" in name:
            try:
                kind = _kind(name)
            except ConfigError as fault:
                raise error(("sinks", name), str(fault)) from None
            fields[name] = (kind | None, None) if kind.is_single else (dict[Name, kind], {})  # type: ignore[valid-type]
    return create_model("Sinks", __base__=Sinks, **fields)


def _kind(name: str) -> type[SinkSettings]:
    kind = plugins.load(name, None, group=GROUP, noun="kind of sinks")
    if not (isinstance(kind, type) and issubclass(kind, SinkSettings)):
        raise ConfigError(f"'{name}' is no kind of sinks; it must be a subclass of coe.serve.bridge.sinks.SinkSettings")
    return kind


def expect_packages(sinks: Sinks) -> None:
    """Raise ConfigError if a sink of the config needs a package that is not installed."""
    for kind, _, sink in sinks.listed():
        if (package := sink.needs) is not None and find_spec(package.module) is None:
            raise ConfigError(
                f"sinks.{kind} needs {package.name}, which is not installed; install coe-vision[{package.extra}]"
            )


def sinks_of(station: str, sinks: Sinks) -> Iterator[Sink]:
    """Yield the sinks of a station; raises ConfigError for a missing package, an unreadable secret or certificate."""
    expect_packages(sinks)
    for kind, name, sink in sinks.listed():
        key = f"sinks.{kind}" if sink.is_single else f"sinks.{kind}.{name}"
        origin = Origin(station, sinks.cfx_handle or station, key, *sink.request_place(station))
        yield Sink(name, sink.connection(origin), sink.message_format(origin), sink.heartbeat_s)
