"""`/openapi.json`: what it says of answers is what comes, so that a client which was generated from it works."""

import re
from dataclasses import replace
from datetime import datetime

import pytest
from endpoint_table import table, table_of_page
from serve_rows import decided, ng
from serving import hand_in, put
from tiny_line import TINY

from coe.core import Box, Finding, Heat, Likeness
from coe.serve.database import fault_log
from coe.serve.database.tables import NewFault
from coe.serve.enums import FaultKind, Process

STATED = {"properties", "additionalProperties", "patternProperties"}
"""What a schema says of the fields of an object."""
_TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}


class Description:
    """The description of an API, to compare answers with."""

    def __init__(self, document):
        self.document = document
        self.seen = set()

    def operation(self, method, path):
        for template, methods in self.document["paths"].items():
            if method.lower() in methods and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
                self.seen.add((method, template))
                return methods[method.lower()]
        raise AssertionError(f"{method} {path} is not described")

    def expect(self, answer):
        """Raise AssertionError unless an answer is as it is described, and holds nothing else."""
        request = answer.request
        described = self.operation(request.method, request.url.path)["responses"]
        one = described.get(str(answer.status_code)) or described.get(f"{answer.status_code // 100}XX")
        assert one is not None, (request.url, answer.status_code)
        answer.read()
        if "content" not in one:
            assert not answer.content, request.url
            return
        assert all(name in answer.headers for name in one.get("headers", ())), (request.url, answer.headers)
        media_type = answer.headers["content-type"].partition(";")[0]
        assert media_type in one["content"], (request.url, media_type)
        if media_type.endswith("json"):
            self.fits(one["content"][media_type]["schema"], answer.json(), request.url.path)

    def fits(self, schema, value, where):
        if "$ref" in schema:
            schema = self.resolved(schema["$ref"])
        if "anyOf" in schema:
            fitting = [choice for choice in schema["anyOf"] if self.does_fit(choice, value)]
            assert fitting, (where, value)
        elif schema.get("type") == "object":
            assert isinstance(value, dict), (where, value)
            properties = schema.get("properties", {})
            others = schema.get("additionalProperties", "properties" not in schema)
            assert set(schema.get("required", ())) <= set(value), (where, set(schema["required"]) - set(value))
            for name, part in value.items():
                assert name in properties or others, f"{where}: {name} is not described"
                self.fits(properties.get(name, others if isinstance(others, dict) else {}), part, f"{where}.{name}")
        elif schema.get("type") == "array":
            assert isinstance(value, list), (where, value)
            for part in value:
                self.fits(schema.get("items", {}), part, f"{where}[]")
        elif "type" in schema:
            assert isinstance(value, _TYPES[schema["type"]]), (where, value)
            assert value in schema.get("enum", [value]), (where, value)
            if schema.get("format") == "date-time":
                assert datetime.fromisoformat(value).tzinfo is not None, where

    def does_fit(self, schema, value):
        try:
            self.fits(schema, value, "")
        except AssertionError:
            return False
        return True

    def resolved(self, reference):
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas"
        return self.document["components"]["schemas"][name]


@pytest.fixture
def description(served):
    """The description of a served gate; each answer to its clients is compared with it."""
    described = Description(served.nobody.get("/openapi.json").json())
    for client in (served.feeder, served.operator, served.engineer, served.nobody):
        client.event_hooks = {"response": [described.expect]}
    return described


def parts_of(node):
    if isinstance(node, dict):
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from parts_of(part)


def test_the_guide_lists_the_endpoints():
    assert table_of_page() == table(), "write it again: python tests/support/endpoint_table.py"


def test_every_reference_leads_somewhere_and_no_answer_is_without_its_content_or_has_a_loose_field(description):
    for part in parts_of(description.document):
        if "$ref" in part:
            description.resolved(part["$ref"])
    answers, seen = [], set()
    for path, methods in description.document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {"content": {}})["content"]
            assert all("schema" in one for one in body.values()), (method, path)
            for status, one in operation["responses"].items():
                if path.startswith("/api/") and status != "204":
                    assert all("schema" in kind for kind in one["content"].values()), (method, path, status)
                if path.startswith(("/api", "/health")) and status[1:] != "XX":
                    answers += [kind["schema"] for kind in one.get("content", {}).values()]
    while answers:
        for part in parts_of(answers.pop()):
            assert part, "a field of any content"
            assert part.get("type") != "object" or part.keys() & STATED, part
            assert part.get("additionalProperties") is not True, part
            if "$ref" in part and part["$ref"] not in seen:
                seen.add(part["$ref"])
                answers.append(description.resolved(part["$ref"]))


def test_findings_of_every_kind_are_as_they_are_described(served, description):
    box = Box("bridge", float("nan"), (1.0, 2.0, 3.0, 4.0))
    heat, likeness = Heat(1, 2, b"ab"), Likeness(1, b"rgb", (0.0, 0.0, 1.0, 1.0))
    more = {"doubt": "it does not fit", "read": "A7", "allowed": ("A.",), "reference": "other"}
    rows = [
        Finding("look", "fp32", "bridge", 0.9, (box,)).to_dict(),
        Finding("look", "fp32", "ok", float("nan"), heat=heat, likeness=likeness, **more).to_dict(),
    ]
    served.database.write(decided, "k1", replace(ng("R1"), findings=rows))
    found = served.operator.get("/api/v1/calls/1").json()["findings"]
    for row, told in zip(rows, found, strict=True):
        assert {name for name in told if told[name]} == {name for name in row if row[name]}
        description.fits({"$ref": "#/components/schemas/Finding"}, told, "a finding")


def test_answers_are_as_they_are_described(served, description):
    feeder, operator, engineer = served.feeder, served.operator, served.engineer
    put(feeder, "b1", "R1")
    hand_in(feeder, "b1", {"R1": "A"}, serial="S1")
    hand_in(feeder, "b1", {"R1": "A"}, serial="S2")  # a conflict
    board = served.database.write(decided, "b2", ng("R1"), ng("R2"))
    served.database.write(fault_log.note, NewFault(Process.WEB, FaultKind.DISK_FULL, "no room"), 5)
    engineer.post("/api/v1/recipes/next", json={"rules": TINY})
    engineer.post("/api/v1/recipes/next/1/activate")
    engineer.post("/api/v1/trials", json={"recipe": "tiny", "boards": 10})
    engineer.post("/api/v1/exports", json={})
    operator.post("/api/v1/calls/1/claim")
    operator.delete("/api/v1/calls/1/claim")
    for path in ("boards", "boards/1", f"boards/{board.id}?good=1", "boards/99", "boards?verdict=NG", "repairs"):
        operator.get(f"/api/v1/{path}")
    for path in ("fpy", "pareto", "spc"):
        operator.get(f"/api/v1/stats/{path}?since=1971-01-01&until=1971-06-01")
    for path in ("state", "recipes", "recipes/tiny/1", "activations/1", "trials", "trials/1", "faults?all=1"):
        engineer.get(f"/api/v1/{path}")
    for path in ("/health/live", "/health/ready"):
        served.nobody.get(path)
    operator.get("/metrics")
    operator.post("/api/v1/escapes", json={"serial": "S1", "refdes": "R7"})
    engineer.post("/api/v1/faults/1/clear")
    engineer.post("/api/v1/drain")
    engineer.post("/api/v1/resume")
    served.feeder.delete("/api/v1/boards/1")
    assert len(description.seen) > 25


def test_a_client_answers_a_call_by_the_description_alone(served, description):
    served.database.write(decided, "b1", ng("R1"))
    operator = served.operator
    [call] = operator.get("/api/v1/calls", params={"status": "open"}).json()["calls"]
    taken = operator.post(f"/api/v1/calls/{call['call']}/claim")
    path = f"/api/v1/calls/{call['call']}/verification"
    described = description.operation("POST", path)
    needed = [one["name"] for one in described["parameters"] if one["in"] == "header" and one["required"]]
    assert needed == ["If-Match"]
    body = description.resolved(described["requestBody"]["content"]["application/json"]["schema"]["$ref"])
    outcomes = description.resolved(body["properties"]["outcome"]["$ref"])["enum"]
    assert operator.post(path, json={"outcome": "confirmed"}).status_code == 428
    answer = operator.post(path, json={"outcome": outcomes[0]}, headers={"If-Match": taken.headers["ETag"]})
    assert (answer.status_code, answer.json()["by"]) == (201, "operator")
    [source] = described["responses"]["201"]["headers"]
    path, seen = f"/api/v1/calls/{call['call']}/repair", {"If-Match": answer.headers[source]}
    assert operator.post(path, json={"outcome": "scrapped"}, headers=seen).status_code == 201
    assert operator.get(f"/api/v1/calls/{call['call']}").json()["verifications"] == [answer.json()]
    assert operator.post("/api/v1/calls/next").status_code == 204


def test_defaults_of_a_query_may_be_sent(served, description):
    """As generated clients do; a number that a client of JavaScript cannot hold is no default."""
    for path, methods in description.document["paths"].items():
        for one in methods.get("get", {"parameters": []})["parameters"]:
            default = one["schema"].get("default")
            assert not isinstance(default, int) or default < 2**53, (path, one)
    asked = description.operation("GET", "/api/v1/boards/1/part")["parameters"]
    assert [one["required"] for one in asked if one["name"] == "refdes"] == [True]
    queried = description.operation("GET", "/api/v1/calls")["parameters"]
    assert [one["schema"].get("maximum") for one in queried if one["name"] == "limit"] == [500]
    defaults = {one["name"]: default for one in queried if (default := one["schema"].get("default")) is not None}
    for status in ("open", "answered"):
        assert served.operator.get("/api/v1/calls", params={**defaults, "status": status}).status_code == 200
