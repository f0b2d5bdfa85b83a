"""The Open Inference Protocol v2: a recipe is a model, one picture is a board."""

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick_line import QuickDevice
from serving import Served
from stations import DARK, LIGHT, deciding, quick_opener
from test_serve_api_description import Description

from coe.errors import ConfigError
from coe.serve.gate.tensors import OUTPUTS, answer, packed, parse

PATH = "/v2/models/tiny/infer"


@pytest.fixture
def decided(served: Served, tiny: tuple[Path, Path]) -> Iterator[Served]:
    """A gate, and a line that looks at brightness alone."""
    with deciding(served.gate.config, served.database, quick_opener(tiny, QuickDevice())):
        yield served


def with_bytes(picture: bytes, component: str = "C", **more: Any) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request whose inputs come as bytes."""
    raw = [struct.pack("<I", len(one)) + one for one in (picture, component.encode())]
    inputs = [
        {"name": name, "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(part)}}
        for name, part in zip(("image", "component"), raw, strict=True)
    ]
    text = json.dumps({"inputs": inputs, **more}).encode()
    return text + b"".join(raw), {"Inference-Header-Content-Length": str(len(text))}


def outputs(answer: Any) -> dict[str, Any]:
    return {row["name"]: row["data"][0] for row in answer.json()["outputs"]}


@pytest.mark.parametrize(("picture", "verdict"), [(LIGHT, "OK"), (DARK, "NG")])
def test_a_picture_gets_its_decision_and_is_a_board_like_any_other(
    decided: Served, picture: bytes, verdict: str
) -> None:
    body, headers = with_bytes(picture, id="mine")
    answer = decided.feeder.post(PATH, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    Description(decided.nobody.get("/openapi.json").json()).expect(answer)
    assert {key: answer.json()[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "tiny", "model_version": "1", "id": "mine",
    }  # fmt: skip
    said = outputs(answer)
    assert said["verdict"] == verdict
    assert json.loads(said["findings"])
    board = decided.operator.get(f"/api/v1/boards/{said['board']}").json()
    assert (board["verdict"], board["recipe"], board["components"]) == (verdict, "tiny", 1)


def test_pixels_as_numbers_and_answers_as_bytes(decided: Served) -> None:
    pixels = np.full((40, 30, 3), 200, np.uint8)
    request = {
        "inputs": [
            {"name": "image", "shape": [40, 30, 3], "datatype": "UINT8", "data": pixels.tolist()},
            {"name": "component", "shape": [1], "datatype": "BYTES", "data": ["C"]},
        ],
        "outputs": [{"name": "verdict", "parameters": {"binary_data": True}}, {"name": "board"}],
    }
    answer = decided.feeder.post("/v2/models/tiny/versions/1/infer", json=request)
    assert answer.status_code == 200, answer.text
    Description(decided.nobody.get("/openapi.json").json()).expect(answer)
    length = int(answer.headers["Inference-Header-Content-Length"])
    rows = json.loads(answer.content[:length])["outputs"]
    assert [row["name"] for row in rows] == ["verdict", "board"]
    assert answer.content[length:] == struct.pack("<I", 2) + b"OK"


def test_a_picture_in_json_is_base64(decided: Served) -> None:
    image = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [base64.encodebytes(LIGHT).decode()]}
    inputs = [image, {"name": "component", "shape": [1], "datatype": "BYTES", "data": ["C"]}]
    answer = decided.feeder.post(PATH, json={"inputs": inputs})
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, ["OK"]), answer.text


def test_what_cannot_be_used_is_refused_in_the_protocols_own_field(served: Served) -> None:
    odd = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    inputs = [
        {"name": "image", "shape": [1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3]},
        {"name": "component", "shape": [1], "datatype": "BYTES", "data": ["C"]},
    ]
    refused: list[tuple[str, dict[str, Any], int, str]] = [
        (PATH, {"inputs": []}, 422, "inputs"),
        (PATH, {"inputs": [odd]}, 422, "no input 'image'"),
        (PATH, {"inputs": [{**odd, "name": "image", "data": ["r12.png"]}, inputs[1]]}, 422, "base64"),
        (PATH, {"outputs": [{"name": "verdikt"}]}, 422, "there is no output 'verdikt'"),
        (PATH, {"parameters": {"priority": 1}}, 422, "'priority' is not a key"),
        ("/v2/models/none/infer", {}, 404, "no such active recipe as 'none'"),
        ("/v2/models/tiny/versions/9/infer", {}, 404, "recipe 'tiny'"),
    ]
    for path, change, status, sentence in refused:
        answer = served.feeder.post(path, json={"inputs": inputs, **change})
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text


def test_a_component_that_the_recipe_lacks_and_a_body_that_is_no_picture_are_refused(served: Served) -> None:
    body, headers = with_bytes(LIGHT, "Z")
    assert "no component 'Z'" in served.feeder.post(PATH, content=body, headers=headers).json()["error"]
    body, headers = with_bytes(b"no picture")
    assert served.feeder.post(PATH, content=body, headers=headers).status_code == 415
    assert served.nobody.post(PATH, content=body, headers=headers).status_code == 401
    assert served.nobody.get("/v2").json()["error"]
    assert served.operator.post(PATH, content=body, headers=headers).status_code == 403


def test_metadata(served: Served) -> None:
    assert served.feeder.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    model = served.feeder.get("/v2/models/tiny").json()
    assert (model["name"], model["versions"]) == ("tiny", ["1"])
    assert [tensor["name"] for tensor in model["inputs"]] == ["image", "component"]
    assert served.feeder.get("/v2/models/tiny/versions/1/ready").status_code == 200
    assert served.feeder.get("/v2/models/none/ready").status_code == 404


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"\x05\x00\x00\x00abc", "ends in the middle of a value"),
        (b"\x05\x00", "ends in the middle of a length"),
        (struct.pack("<I", 1) + b"a" + struct.pack("<I", 1) + b"b", "has 2 values, and its shape says 1"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(raw: bytes, sentence: str) -> None:
    tensor = {"name": "a", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    text = json.dumps({"inputs": [tensor]}).encode()
    parsed = parse(text + raw, str(len(text)))
    with pytest.raises(ConfigError, match=sentence):
        parsed.values(parsed.request.inputs[0])
    with pytest.raises(ConfigError, match="bytes follow the JSON"):
        parse(text + raw + b"x", str(len(text)))
    with pytest.raises(ConfigError, match="not a length within the body"):
        parse(text, str(len(text) + 1))


def test_a_request_that_says_a_thing_twice_or_no_number_is_refused() -> None:
    image = '{"name": "image", "shape": [1], "datatype": "UINT8", "data": %s}'
    for data, sentence in (('[7], "data": [8]', "'data' stands twice"), ("[NaN]", "NaN is not a number")):
        with pytest.raises(ConfigError, match=sentence):
            parse(f'{{"inputs": [{image % data}]}}'.encode(), None)


def test_values_travel_as_the_protocol_says() -> None:
    assert [packed(value) for value in (7, 0.5, "é")] == [
        struct.pack("<q", 7),
        struct.pack("<f", 0.5),
        b"\x02\x00\x00\x00\xc3\xa9",
    ]
    plain = parse(b'{"inputs": [{"name": "a", "shape": [0], "datatype": "UINT8", "data": []}]}', None).request
    assert answer({}, dict.fromkeys(OUTPUTS, "x"), plain).media_type == "application/json"


@pytest.mark.slow
def test_a_stock_triton_client_is_answered(decided: Served) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    client = triton.InferenceServerClient(decided.address.removeprefix("http://"))
    headers = {"Authorization": decided.feeder.headers["Authorization"]}
    image = triton.InferInput("image", [1], "BYTES")
    image.set_data_from_numpy(np.array([DARK], object))
    component = triton.InferInput("component", [1], "BYTES")
    component.set_data_from_numpy(np.array([b"C"], object))
    result = client.infer("tiny", [image, component], headers=headers, parameters={"within_s": 20.0})
    assert result.as_numpy("verdict").tolist() == [b"NG"]
    assert result.as_numpy("score").dtype == np.float32
    pixels = triton.InferInput("image", [50, 50, 3], "UINT8")
    pixels.set_data_from_numpy(np.full((50, 50, 3), 200, np.uint8), binary_data=False)
    asked = [triton.InferRequestedOutput("verdict"), triton.InferRequestedOutput("board", binary_data=False)]
    result = client.infer("tiny", [pixels, component], outputs=asked, headers=headers)
    assert result.as_numpy("verdict").tolist() == [b"OK"]
    assert result.as_numpy("board").dtype == np.int64
    assert client.is_server_live(headers=headers)
    assert client.is_server_ready(headers=headers)
    assert client.is_model_ready("tiny", headers=headers)
    assert client.get_model_metadata("tiny", headers=headers)["platform"] == "coe"
    with pytest.raises(triton.InferenceServerException, match="no such active recipe"):
        client.infer("none", [image, component], headers=headers)
    client.close()


def test_a_request_that_is_refused_leaves_no_picture(served: Served) -> None:
    body, headers = with_bytes(LIGHT, component="nothing")
    for _ in range(2):
        answer = served.feeder.post(PATH, content=body, headers=headers)
        assert (answer.status_code, "no component 'nothing'" in answer.json()["error"]) == (422, True)
    assert [file for file in served.gate.pictures.folder.glob("*/*") if file.is_file()] == []
