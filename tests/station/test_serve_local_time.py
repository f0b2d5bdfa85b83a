"""Local time and shifts are for people: pages show them, everything is stored in UTC."""

from contextlib import closing
from datetime import UTC, datetime, time
from itertools import pairwise

import pytest
from serve_rows import NOON, decided, ng
from serving import signed_in

from coe.errors import CoeError
from coe.serve import service_config
from coe.serve.clock import HOUR_US, LocalTime
from coe.serve.enums import Role

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


def test_a_config_has_a_zone_and_shifts(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text('station: a\nzone: Europe/Berlin\nshifts: {early: "06:00", late: "14:00"}\n')
    local = service_config.load(file).local
    assert (local.zone, dict(local.shifts)) == ("Europe/Berlin", {"early": time(6), "late": time(14)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zone: Europe/Berlln", "Europe/Berlin"),
        ("zone: ../../etc/passwd", "time zone"),
        ('shifts: {early: "6 am"}', "time of day"),
        ('shifts: {early: "24:00"}', "time of day"),
        ('shifts: {early: "06:00", late: "06:00"}', "same time"),
    ],
)
def test_a_wrong_zone_or_time_is_named_with_its_line(text, words, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(f"station: a\n{text}\n")
    with pytest.raises(CoeError, match=words) as caught:
        service_config.load(file)
    assert ":2" in str(caught.value)


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
        assert "2023-11-14 23:13 Europe/Berlin" in person.get("/boards/1").text
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
        csrf = {"X-CSRF-Token": page.text.partition('name="csrf" content="')[2].partition('"')[0]}
        for path in ("/api/v1/drain", "/api/v1/faults/1/clear", "/api/v1/calls/1/verification"):
            assert wall.post(path, headers=csrf).status_code == 403
        at_us = served.gate.now_us()
        served.gate.now_us = lambda: at_us + 300 * 24 * HOUR_US
        assert wall.get("/").status_code == 200
        served.gate.now_us = lambda: at_us + 366 * 24 * HOUR_US
        assert wall.get("/").status_code == 303
