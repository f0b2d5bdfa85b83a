"""The config file of a service: strict, with a sentence that names file, line and way out."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from coe.errors import ConfigError, RulesError
from coe.serve import service_config
from coe.serve.bridge import building
from coe.serve.bridge.building import expect_packages
from coe.serve.sink_config import Secret, SinkKind, Sinks
from coe.strict_model import StrictModel


def written(folder: Path, text: str) -> Path:
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_count_from_the_file_and_the_rest_has_defaults(tmp_path: Path) -> None:
    read = service_config.load(written(tmp_path, "station: aoi-1\ndata: here\nline: {memory: 25MB, store: ../store}\n"))
    assert read.data == tmp_path / "here"
    assert read.line.store == tmp_path / "../store"
    assert read.listen.is_loopback
    assert read.limits.body == 256_000_000
    assert read.database_url == f"sqlite:///{tmp_path}/here/serve.db"
    assert read.line.options("a").memory == 25_000_000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("station: a\nlisen: {}", r"serve.yaml:2: 'lisen' is not a key; did you mean 'listen'"),
        ("station: a\nlisten:\n  prt: 1", r"serve.yaml:3: 'prt' is not a key of 'listen'; did you mean 'port'\?"),
        ("data: x", "serve.yaml:1: 'station' is missing"),
        ("station: a\nlisten: {port: 70000}", "serve.yaml:2: listen.port: .*70000"),
        ("station: a\nlisten: {host: example.com}", "serve.yaml:2: listen.host: .*not an address"),
        ("station: a\nlisten:\n  host: 0.0.0.0", "serve.yaml:3: 0.0.0.0 is reached from other machines.*TLS"),
        ("station: a\nlisten: {certificate: a.pem}", "serve.yaml:2: TLS needs both"),
        ("station: a\nline: {memory: lots}", "serve.yaml:2: .*'lots' is not an amount of memory"),
        ("station: a\nline: {memory: 0}", "serve.yaml:2: .*'0' is no memory at all"),
        ("station: a\nline: {memory: [1]}", "serve.yaml:2: .*give an amount of memory"),
        ("station: a\nline: {executors: cpu=x}", "serve.yaml:2: .*cpu=x"),
        ("station: a b", "serve.yaml:1: station: "),
        (
            "station: a\nsinks:\n  mqtt:\n    x: {hots: b}",
            r"serve.yaml:4: 'hots' is not a key of 'sinks.mqtt.x'; did you mean",
        ),
        (
            "station: a\nsinks: {mqtt: {x: {host: a, tls: {caa: b}}}}",
            r"'caa' is not a key of 'sinks.mqtt.x.tls'; did you mean 'ca'",
        ),
        ("station: a\nsinks: {mqtt: {x: {host: tcp://a}}}", "serve.yaml:2: sinks.mqtt.x.host: .*not a host"),
        ("station: a\nsinks: {mqtt: {x: {host: a, topic: b/#}}}", "not a topic to publish under"),
        ("station: a\nsinks: {mqtt: {x: {host: a, password: {file: p}}}}", "a password needs a `user`"),
        ("station: a\nsinks: {mqtt: {x: {host: a, user: u, password: {}}}}", "say where the secret lies"),
        ("station: a\nsinks: {mqtt: {x: {host: a}}, amqp: {x: {host: a, address: b}}}", "two sinks have the name 'x'"),
        (
            "station: a\nsinks: {hosts: [a], webhooks: {x: {url: 'http://b/c', secret: {file: s}}}}",
            "webhook 'x' goes to b, which is not in `hosts`",
        ),
        ("station: a\nsinks: {opcua: {host: 0.0.0.0}}", "0.0.0.0 is reached from other machines"),
        ("- a", "serve.yaml:1: write entries"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(RulesError, match=sentence):
        service_config.load(written(tmp_path, text))


def test_other_machines_are_let_in_with_tls(tmp_path: Path) -> None:
    tls = "station: a\nlisten: {host: 0.0.0.0, certificate: c.pem, private_key: k.pem}"
    listen = service_config.load(written(tmp_path, tls)).listen
    assert (listen.has_tls, listen.certificate) == (True, tmp_path / "c.pem")


def test_secrets_are_read_from_where_the_config_says_and_stay_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheet = "station: a\nsinks: {mqtt: {x: {host: a, user: u, password: {file: p.txt}}}}"
    broker = service_config.load(written(tmp_path, sheet)).sinks.mqtt["x"]
    assert broker.password is not None
    with pytest.raises(ConfigError, match=r"sinks.mqtt.x: .*p.txt cannot be read: No such file"):
        broker.password.read("sinks.mqtt.x")
    (tmp_path / "p.txt").write_text("hunter2\n")
    assert broker.password.read("sinks.mqtt.x") == "hunter2"
    assert "hunter2" not in repr(broker)
    monkeypatch.setenv("COE_TEST_SECRET", "s3")
    assert Secret(environment="COE_TEST_SECRET").read("x") == "s3"
    monkeypatch.delenv("COE_TEST_SECRET")
    with pytest.raises(ConfigError, match="COE_TEST_SECRET is not set"):
        Secret(environment="COE_TEST_SECRET").read("x")


def test_a_sink_whose_package_is_absent_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = service_config.load(written(tmp_path, "station: a\nsinks: {mqtt: {x: {host: a}}}"))
    expect_packages(read)
    monkeypatch.setattr(building, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"sinks.mqtt needs paho-mqtt, .* install coe-vision\[mqtt\]"):
        expect_packages(read)


PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
ALL_SINKS = """
station: a
sinks:
  opcua: {}
  webhooks: {w: {url: "https://a/b", secret: {environment: COE_TEST_SECRET}}}
  amqp: {q: {host: a, address: /exchange/cfx}}
  mqtt: {m: {host: a}, n: {host: b}}
  hosts: [a]
"""


def test_each_kind_of_sink_has_its_name_its_form_and_its_line_of_the_table(tmp_path: Path) -> None:
    read = service_config.load(written(tmp_path, ALL_SINKS))
    assert list(read.sinks.names) == ["m", "n", "q", "w", "opcua"]
    assert service_config.load(written(tmp_path, "station: a")).sinks == Sinks()
    forms = {name for name, field in Sinks.model_fields.items() if "Settings" in str(field.annotation)}
    assert forms == set(SinkKind) == set(building._KINDS)
    assert all(issubclass(type(form), StrictModel) for kind in SinkKind for form in read.sinks.of(kind).values())
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for kind in building._KINDS.values():
        if kind.package is not None:
            assert [word for word in extras[kind.package.extra] if word.startswith(f"{kind.package.name}>=")]


@pytest.mark.parametrize("kind", SinkKind)
def test_a_package_in_the_table_is_looked_for_whatever_the_kind(
    kind: SinkKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        building, "_KINDS", {other: replace(row, package=None) for other, row in building._KINDS.items()}
    )
    read = service_config.load(written(tmp_path, ALL_SINKS))
    expect_packages(read)
    package = building._Package("no_such_module", "no-such-package", "no-extra")
    monkeypatch.setitem(building._KINDS, kind, replace(building._KINDS[kind], package=package))
    with pytest.raises(ConfigError, match=rf"sinks.{kind} needs no-such-package, .* install coe-vision\[no-extra\]"):
        expect_packages(read)
