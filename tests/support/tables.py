"""Tables of cases of which `make test` runs a few rows, and `make test-all` all."""

import pytest


def with_slow_rows(rows, *, fast):
    """Return the rows of a parametrised test; those behind the first `fast` are marked slow."""
    return [
        row if index < fast else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow)
        for index, row in enumerate(rows)
    ]
