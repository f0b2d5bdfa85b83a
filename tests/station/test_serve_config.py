"""The config file of a service: strict, with a sentence that names file, line and way out; its zone and its shifts."""

import pickle
import re
import tomllib
from contextlib import closing
from datetime import UTC, datetime, time
from itertools import pairwise
from pathlib import Path

import pytest
from certificates import Authority
from cryptography.hazmat.primitives import serialization
from serve_rows import NOON, decided, ng
from serving import csrf, signed_in
from sqlalchemy import make_url

from coe.errors import ConfigError, RulesError
from coe.serve import service_config
from coe.serve.bridge.sinks import Origin, Package, Secret, expect_packages
from coe.serve.clock import HOUR_US, LocalTime
from coe.serve.enums import Role
from coe.serve.gate import pages
from coe.serve.gate.server import expect_place


def written(folder, text):
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return path


FOLDERS = "station: a\nfolders:\n  camera: {path: in, done: out, recipe: tiny}\n"


def test_paths_count_from_the_file_and_the_rest_has_defaults(tmp_path):
    folder = service_config.load(written(tmp_path, FOLDERS)).folders["camera"]
    assert (folder.path, folder.done) == (tmp_path / "in", tmp_path / "out")
    tls = "station: a\nlisten: {host: 0.0.0.0, certificate: c.pem, private_key: k.pem}"
    listen = service_config.load(written(tmp_path, tls)).listen
    assert (listen.has_tls, listen.certificate) == (True, tmp_path / "c.pem")
    read = service_config.load(written(tmp_path, "station: aoi-1\ndata: here\nline: {memory: 25MB, store: ../store}\n"))
    assert read.data == tmp_path / "here"
    assert read.line.store == tmp_path / "../store"
    assert read.listen.is_loopback
    assert read.line.options("a").memory == 25_000_000
    assert read.limits.body == 256_000_000
    assert read.database_url == f"sqlite:///{tmp_path}/here/serve.db"
    read = service_config.load(written(tmp_path, "station: aoi-1\ndata: '50%25 done?'\n"))
    assert make_url(read.database_url).database == str(read.data / "serve.db")
    with pytest.raises(ConfigError, match=r"serve\.yaml"):
        service_config.load(tmp_path)


def test_the_line_takes_the_options_of_lines(tmp_path):
    text = "line: {strategy: coserve, search_kernels: false, profile: none, allow_kinds: [a], threads: 3}"
    options = service_config.load(written(tmp_path, f"station: aoi-1\n{text}\n")).line.options("b")
    assert (options.strategy.name, options.search_kernels) == ("coserve", False)
    assert (options.profile, options.allow_kinds, options.threads) == (None, ("a",), 3)
    waits = service_config.load(written(tmp_path, "station: aoi-1\nline: {max_wait: 2min}\n")).line.options("b")
    assert waits.max_wait_s == 120


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("station: a\nlisen: {}", r"serve.yaml:2: 'lisen'.*'listen'"),
        ("station: a\nlisten:\n  prt: 1", r"serve.yaml:3: 'prt'.*'listen'.*'port'"),
        ("data: x", "serve.yaml:1: 'station' is missing"),
        ("station: a\nlisten: {host: example.com}", "serve.yaml:2: listen.host: .*example.com"),
        ("station: a\nlisten:\n  host: 0.0.0.0", "serve.yaml:3: 0.0.0.0 .*TLS"),
        ("station: a\nlisten: {certificate: a.pem}", "serve.yaml:2: TLS needs both"),
        ("station: a\nline: {memory: lots}", "serve.yaml:2: .*'lots'"),
        ("station: a\nline: {memory: 0}", "serve.yaml:2: .*'0'"),
        ("station: a\nline: {memory: [1]}", "serve.yaml:2: .*give an amount of memory"),
        ("station: a\nline: {executors: cpu=x}", "serve.yaml:2: .*cpu=x"),
        ("station: a\nline:\n  memory: 1GB\n  threads: 0", "serve.yaml:4: threads=0"),
        ("station: a\nline:\n  max_wait: soon", "serve.yaml:3: 'soon' is not a time"),
        ("station: a\nline: {stratgy: line}", "serve.yaml:2: .*did you mean 'strategy'"),
        ("station: a\nline: {strategy: samba, max_wait: 5s}", "serve.yaml:2: strategy 'samba'"),
        ("station: a b", "serve.yaml:1: station: "),
        ("station: a\nsinks:\n  mqtt:\n    x: {hots: b}", r"serve.yaml:4: 'hots'.*'sinks.mqtt.x'.*'host'"),
        ("station: a\nsinks: {mqtt: {x: {host: a, tls: {caa: b}}}}", r"'caa'.*'sinks.mqtt.x.tls'.*'ca'"),
        ("station: a\nsinks: {mqtt: {x: {host: tcp://a}}}", "serve.yaml:2: sinks.mqtt.x.host: .*not a host"),
        ("station: a\nsinks: {mqtt: {x: {host: a, topic: b/#}}}", "not a topic to publish under"),
        ("station: a\nsinks: {mqtt: {x: {host: a, password: {file: p}}}}", "a password needs a `user`"),
        ("station: a\nsinks: {mqtt: {x: {host: a, user: u, password: {}}}}", "state where the secret is"),
        ("station: a\nsinks: {mqtt: {x: {host: a}}, amqp: {x: {host: a, address: b}}}", "two sinks have the name 'x'"),
        (
            "station: a\nsinks: {webhooks: {x: {url: 'http://b/c', secret: {file: s}}}}",
            "'x' goes to b, which is not in",
        ),
        ("station: a\nsinks: {opcua: {host: 0.0.0.0}}", "0.0.0.0"),
        ("station: a\nsinks:\n  mqqt: {x: {host: a}}", r"serve.yaml:3: 'mqqt' is not a key of 'sinks'.* 'mqtt'"),
        ("station: a\nsinks: {mqtt: {x: {host: a, format: cxf}}}", "sinks.mqtt.x.format: .*'cfx'"),
        ("station: a\nsinks:\n  no_such:Sink: {x: {}}", "serve.yaml:3: .*no_such:Sink.*cannot be imported"),
        ("station: a\nsinks: {coe.errors:ConfigError: {x: {}}}", "coe.errors:ConfigError.*SinkSettings"),
        ("station: a\nverify:\n  keys: {good: go}", "serve.yaml:3: verify.keys.good: .*'go'"),
        ("station: a\nverify:\n  keys: {good: W}", "serve.yaml:3: verify.keys.good: .*'w'"),
        ("station: a\nverify:\n  keys: {good: 2}", "serve.yaml:3: verify.keys: .*'2'"),
        ("- a", "serve.yaml:1: write entries"),
        (FOLDERS.replace("done: out", "done: in/done"), "serve.yaml:3: "),
        (f"{FOLDERS}  other: {{path: in/SN1, done: out2, recipe: tiny}}", "'other'"),
        ("station: a\nzone: Europe/Berlln", "serve.yaml:2: .*Europe/Berlin"),
        ("station: a\nzone: ../../etc/passwd", "serve.yaml:2: .*time zone"),
        ('station: a\nshifts: {early: "6 am"}', "serve.yaml:2: .*time of day"),
        ('station: a\nshifts: {early: "24:00"}', "serve.yaml:2: .*time of day"),
        ('station: a\nshifts: {early: "06:00", late: "06:00"}', "serve.yaml:2: .*same time"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path, text, sentence):
    with pytest.raises(RulesError, match=sentence):
        service_config.load(written(tmp_path, text))


def test_keys_of_answers_are_those_of_the_keyboard_and_leave_the_keys_of_pages_alone(tmp_path):
    read = service_config.load(written(tmp_path, "station: a\nverify: {keys: {good: G, later: 7}, single_keys: false}"))
    assert (read.verify.keys.good, read.verify.keys.defect, read.verify.keys.later) == ("g", "2", "7")
    assert (read.verify.single_keys, read.verify.answers_hold_s) == (False, 5)
    menu = (Path(pages.__file__).parent / "base.j2").read_text(encoding="utf-8")
    assert set(re.findall(r'\("/\w*", "(.)"', menu)) <= set(service_config.PAGE_KEYS)


def test_secrets_are_read_from_where_the_config_says_and_stay_out_of_it(tmp_path, monkeypatch):
    sheet = "station: a\nsinks: {mqtt: {x: {host: a, user: u, password: {file: p.txt}}}}"
    broker = service_config.load(written(tmp_path, sheet)).sinks.mqtt["x"]
    with pytest.raises(ConfigError, match=r"sinks.mqtt.x: .*p.txt"):
        broker.password.read("sinks.mqtt.x")
    (tmp_path / "p.txt").write_text("hunter2\n")
    assert broker.password.read("sinks.mqtt.x") == "hunter2"
    assert "hunter2" not in repr(broker)
    monkeypatch.setenv("COE_TEST_SECRET", "s3")
    assert Secret(environment="COE_TEST_SECRET").read("x") == "s3"
    monkeypatch.delenv("COE_TEST_SECRET")
    with pytest.raises(ConfigError, match="without the environment variable COE_TEST_SECRET"):
        Secret(environment="COE_TEST_SECRET").read("x")


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

ONE_SINK = "station: a\nsinks: {mqtt: {cell: {host: broker.plant}}}\n"


def test_sinks_come_from_entry_points_and_name_the_extras_of_their_packages(tmp_path):
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    sinks = service_config.load(written(tmp_path, ALL_SINKS)).sinks
    assert sinks.names == ["m", "n", "opcua", "q", "w"]
    assert {kind for kind, _, _ in sinks.listed()} == set(project["entry-points"]["coe.sinks"])
    for _, _, sink in sinks.listed():
        if sink.needs is not None:
            extra = project["optional-dependencies"][sink.needs.extra]
            assert [word for word in extra if word.startswith(f"{sink.needs.name}>=")]
    assert service_config.load(written(tmp_path, "station: a")).sinks.names == []


def test_a_format_that_lacks_methods_is_one_sentence(tmp_path):
    text = "station: a\nsinks: {mqtt: {x: {host: a, format: 'builtins:slice'}}}"
    [(_, _, sink)] = service_config.load(written(tmp_path, text)).sinks.listed()
    with pytest.raises(ConfigError, match=r"'builtins:slice' has no messages, sign, answer; derive it"):
        sink.message_format(Origin("s"))


@pytest.mark.parametrize("sinks", [ALL_SINKS, ONE_SINK, "station: a\nsinks: {}\n"], ids=["all", "one", "none"])
def test_another_process_gets_the_same_config(tmp_path, sinks):
    more = 'data: d\nline: {memory: 1GB}\nzone: Europe/Berlin\nshifts: {early: "06:00", late: "14:00"}\n'
    config = service_config.load(written(tmp_path, sinks + more))
    there = pickle.loads(pickle.dumps(config))
    assert there.model_dump() == config.model_dump()
    assert there.sinks.names == config.sinks.names
    assert (there.local.zone, dict(there.local.shifts)) == ("Europe/Berlin", {"early": time(6), "late": time(14)})


@pytest.mark.parametrize("kind", ["opcua", "webhooks", "amqp", "mqtt"])
def test_a_sink_whose_package_is_absent_is_one_sentence(kind, tmp_path, monkeypatch):
    read = service_config.load(written(tmp_path, ALL_SINKS))
    for _, _, listed in read.sinks.listed():  # which of their packages are here says nothing
        monkeypatch.setattr(type(listed), "needs", None)
    expect_packages(read.sinks)
    [sink] = {type(sink) for name, _, sink in read.sinks.listed() if name == kind}
    monkeypatch.setattr(sink, "needs", Package("no_such_module", "no-such-package", "no-extra"))
    with pytest.raises(ConfigError, match=rf"sinks.{kind} needs no-such-package, .* install coe-vision\[no-extra\]"):
        expect_packages(read.sinks)


def test_a_certificate_that_cannot_be_used_is_told_before_anything_starts(tmp_path):
    authority = Authority(tmp_path, "plant")
    (one, key), (_, other) = authority.certificate("one"), authority.certificate("two")
    locked = tmp_path / "locked.pem"
    read = serialization.load_pem_private_key(key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(read.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    nowhere = tmp_path / "no.pem"
    for files in ((nowhere, key), (key, key), (one, other), (one, locked), (one, tmp_path)):
        with pytest.raises(ConfigError, match="cannot be used for TLS"):
            expect_place(service_config.Listen(port=0, certificate=files[0], private_key=files[1]))
    expect_place(service_config.Listen(port=0, certificate=one, private_key=key))


THREE = {"early": time(6), "late": time(14), "night": time(22)}
BERLIN = LocalTime("Europe/Berlin", THREE)


def us(year, month, day, hour, minute=0):
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()) * 1_000_000


def names(shifts):
    return [f"{shift.name} {shift.day:%d} {(shift.end_us - shift.start_us) // HOUR_US} h" for shift in shifts]


@pytest.mark.parametrize(
    ("now_us", "expected"),
    [
        (us(2026, 1, 15, 12, 59), ["early 15 8 h", "night 14 8 h", "late 14 8 h", "early 14 8 h"]),
        (us(2026, 1, 15, 13, 0), ["late 15 8 h", "early 15 8 h", "night 14 8 h", "late 14 8 h"]),
        (us(2026, 1, 15, 2, 0), ["night 14 8 h", "late 14 8 h", "early 14 8 h", "night 13 8 h"]),
        # In the night to 29 March clocks go from 2 to 3, and in that to 25 October back.
        (us(2026, 3, 29, 5, 0), ["early 29 8 h", "night 28 7 h", "late 28 8 h", "early 28 8 h"]),
        (us(2026, 10, 25, 6, 0), ["early 25 8 h", "night 24 9 h", "late 24 8 h", "early 24 8 h"]),
    ],
)
def test_shifts_begin_by_the_clock_of_the_place(now_us, expected):
    found = BERLIN.shifts_until(now_us, 4)
    assert names(found) == expected
    assert found[0].start_us <= now_us < found[0].end_us
    assert all(one.start_us == other.end_us for one, other in pairwise(found))


def test_one_shift_lasts_a_day_and_no_shifts_are_none():
    assert names(LocalTime("Asia/Kolkata", {"day": time(0)}).shifts_until(NOON, 2)) == ["day 15 24 h", "day 14 24 h"]
    assert LocalTime().shifts_until(NOON, 3) == []


@pytest.mark.parametrize(
    ("zone", "hours", "now_us", "expected"),
    [
        ("Europe/Berlin", (2, 3), us(2026, 3, 29, 5), ["3 29 23 h", "3 28 23 h", "2 28 1 h"]),
        ("Pacific/Apia", (6,), us(2011, 12, 30, 20), ["6 31 24 h", "6 29 24 h", "6 28 24 h"]),
    ],
)
def test_of_shifts_in_an_hour_or_a_day_that_the_place_skips_there_is_none(zone, hours, now_us, expected):
    assert names(LocalTime(zone, {str(hour): time(hour) for hour in hours}).shifts_until(now_us, 3)) == expected


def test_pages_show_the_time_of_the_place_and_search_by_it(served):
    served.gate.config = served.gate.config.model_copy(update={"zone": "Europe/Berlin", "shifts": THREE})
    served.gate.now_us = lambda: NOON + HOUR_US
    with closing(signed_in(served, Role.ENGINEER)) as person:
        assert "the shift night" in person.get("/").text
        link = person.get("/statistics").text.partition('value="/statistics?since=')[2].partition('"')[0]
        assert link.startswith("2023-11-14T21:00:00")
        shift = person.get(f"/statistics?since={link.replace('&amp;', '&')}").text
        assert "2023-11-14 22:00 to 2023-11-15 06:00 Europe/Berlin" in shift
        # Another recipe or Pareto is of the same shift.
        form = shift.partition("<form")[2].partition("</form>")[0]
        assert 'name="since" value="2023-11-14T21:00:00' in form
        assert 'name="until" value="2023-11-15T05:00:00' in form
        assert 'name="hours"' not in form
        assert 'name="hours" value="8"' in person.get("/statistics?hours=8").text
        served.database.write(decided, "k1", ng())  # accepted at 22:13:20 UTC, 23:13:20 in Berlin
        assert "2023-11-14 23:13:20 Europe/Berlin" in person.get("/boards/1").text
        for since, is_found in (("23:00", True), ("23:30", False), ("22:00Z", True), ("22:30Z", False)):
            boards = person.get("/boards", params={"since": f"2023-11-14T{since}"}).text
            assert ("/boards/1" in boards) == is_found
        served.engineer.post("/api/v1/trials", json={"recipe": "tiny"})
        trials = person.get("/trials").text
        assert "(Europe/Berlin)" in trials
        assert "2023-11-15 00:13" in trials
        # Programs get and give UTC.
        assert person.get("/api/v1/boards").json()["boards"][0]["accepted"].startswith("2023-11-14T22:13:20")


@pytest.mark.parametrize("since", ["2023-11-15T00:00Z&until=2023-11-14T00:00Z", "1980-01-01"])
def test_a_window_that_ends_before_it_begins_or_is_too_long_is_refused(served, since):
    assert served.operator.get(f"/api/v1/stats/fpy?since={since}").status_code == 400


def test_a_viewer_sees_what_a_wall_shows_changes_nothing_and_stays_signed_in(served):
    served.database.write(decided, "k1", ng())
    with closing(signed_in(served, Role.VIEWER)) as wall:
        page = wall.get("/")
        assert page.status_code == 200
        assert 'href="/verify"' not in page.text
        assert [wall.get(path).status_code for path in ("/statistics", "/boards/1", "/faults")] == [200] * 3
        assert [wall.get(path).status_code for path in ("/verify", "/repair", "/api/v1/calls")] == [403] * 3
        token = {"X-CSRF-Token": csrf(page.text)}
        for path in ("/api/v1/drain", "/api/v1/faults/1/clear", "/api/v1/calls/1/verification"):
            assert wall.post(path, headers=token).status_code == 403
        at_us = served.gate.now_us()
        served.gate.now_us = lambda: at_us + 300 * 24 * HOUR_US
        assert wall.get("/").status_code == 200
        served.gate.now_us = lambda: at_us + 366 * 24 * HOUR_US
        assert wall.get("/").status_code == 303
