"""What a command of `coe-bench` wrote as JSON to standard output."""

import json


def rows_of(said):
    assert said.status == 0, said.err
    rows = json.loads(said.out)
    assert isinstance(rows, list)
    return rows
