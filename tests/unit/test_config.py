"""Amounts of memory and numbers of executors, as people write them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from coe.config import format_bytes, parse_bytes, parse_executors, parse_seconds
from coe.errors import ConfigError

AMOUNTS = {
    **{"1": 1, "123456": 123456, "7B": 7, "3kb": 3000, "3KIB": 3072, "800MB": 800_000_000},
    **{"0.5MiB": 1 << 19, "1.5GiB": 1610612736, "2 GiB": 2 << 30, " 2gib ": 2 << 30},
}


@pytest.mark.parametrize(("text", "amount"), AMOUNTS.items())
def test_an_amount_of_memory_is_read(text, amount):
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 3 << 29: "1.50 GiB", 5e12: "4656.61 GiB"}.items(),
)
def test_an_amount_of_memory_is_written(amount, text):
    assert format_bytes(amount) == text


@given(st.integers(1, 1 << 50))
def test_what_is_written_can_be_read_again(amount):
    assert parse_bytes(format_bytes(amount)) == pytest.approx(amount, rel=0.05)


@given(texts())
def test_any_text_is_an_amount_or_refused(text):
    for parse in (parse_bytes, parse_executors):
        with suppress(ConfigError):
            assert parse(text)


@pytest.mark.parametrize(
    ("text", "executors"),
    [("cpu", {"cpu": 1}), ("cpu=2", {"cpu": 2}), ("cpu=2, cuda:0=3", {"cpu": 2, "cuda:0": 3}), ("cpu=64", {"cpu": 64})],
)
def test_executors_are_read(text, executors):
    assert parse_executors(text) == executors


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5.0), ("250ms", 0.25), ("2min", 120.0), (" 1.5 s ", 1.5), ("7", 7.0), ("0s", 0.0)]
)
def test_a_time_is_read(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "nan", "inf", "5h", "1e9s", "5s5", "9" * 5000])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="250ms"):
        parse_seconds(text)
