"""What `coe-bench` says of a command line that cannot work: one sentence that names what is wrong, and nothing else."""

from pathlib import Path

import pytest

TIMELESS = "looks at neither ages nor due times"
WRONG = {
    # Strategies, and times that no strategy heeds
    "run --strategy coserve,fast": "'fast'",
    "run --strategy samba --max-wait 5s": TIMELESS,
    "run --strategy samba-eager --max-wait 5s": TIMELESS,
    "run --strategy late-binding --max-wait 0s": "0",
    "run --strategy smaba-eager": "'samba'?",
    "run --strategy late-binding-profile-eager": "'late-binding-profile' is a configuration",
    "run --strategy samba-eager --precision mixed": "--precision fp32,mixed",
    "sim --strategy fastest": "'fastest'",
    "sim --strategy coserv": "'coserv'; did you mean 'coserve'",
    "sim --strategy=": "strategy ''",
    "sim --strategy coserve --max-wait 5s": TIMELESS,
    "sim --strategy late-binding --max-wait nan": "'nan'",
    "scale --strategy fastest": "'fastest'",
    # Options that have no effect, or exclude each other
    "run --images pictures": "--images has no effect",
    "run --board demo --work .": "--work has no effect",
    "run --board demo --experts 24": "--experts has no effect",
    "run --profile p.json": "--profile has no effect",
    "run --strategy late-binding-paper-default --executors cpu=1": "--executors has no effect",
    "run --host-only --strategy samba-eager": "'samba-eager'",
    "run --host-only --executors cuda=1": "--executors cpu=1",
    "run --host-only --predict": "--predict has no effect",
    "sim --warm": "--precision mixed",
    "sim --foresight parts": "--order boards",
    "sim --board A --task A1": "--task is not for --board",
    "sim --boxes 2 --boards A,B --task A1": "--task is for",
    "sim --boards A": "no --boxes",
    "sim --boxes 2 --boards A --order boards": "--order is for tasks",
    "sim --boxes 2 --warm": "--warm is for one box",
    "sim --boxes 1 --mishap lost": "at least 2 boxes",
    "switch --cycles 8 --repeats 3": "--repeats",
    "switch --experts 3": "--cycles",
    "switch --device cuda --threads 1": "--threads is for the CPU",
    # Words and numbers
    "run --work . --kind onnx": "no skeleton",
    "run --work . --kind resnet9": "'resnet9'",
    "run --requests 9 --settling 9": "--settling 9",
    "run --rate 0": "number of images a second",
    "run --rate nan": "number of images a second",
    "run --disk-bandwidth fast": "530MB/s",
    "run --precision mixd": "'mixd' is not a precision; did you mean 'mixed'?",
    "sim --precision half": "--precision: there is no 'half'",
    "sim --precision mixed --device uma-m2": "'uma-m2'",
    "sim --task C1": "'C1'",
    "sim --order random": "'random'; known: boards, iid",
    "sim --tail fat": "'fat'; did you mean 'flat'?",
    "sim --device uma-m9": "'uma-m9'; known: numa-rtx3080ti, uma-m2",
    "sim --device uma-m2,box.yaml": "'box.yaml'",
    "sim --seed x": "--seed",
    "sim --foresight oracle": "'oracle'; known: learned, none, parts",
    "sim --boxes 0": "'0'",
    "sim --boxes many": "'many'",
    "sim --boxes 2 --mishap fire": "--mishap: there is no 'fire'",
    "sim --boxes 2 --boards A,A": "twice",
    "scale --experts 39": "--experts: '39'",
    "scale --experts many": "--experts: 'many'",
    "scale --experts 40,": "--experts: ''",
    "scale --requests=-5": "--requests: '-5'",
    "scale --requests 1e5": "--requests: '1e5'",
    f"scale --requests {'9' * 5000}": "10,000,000",
    "scale --every=-1": "--every",
    "scale --every nan --experts 40 --requests 40": "--every",
    "switch --variant q9": "'q9'; known: ",
    "switch --work . --kind onnx": "no skeleton",
    "switch --work . --kind resnet19": "'resnet19'",
    "switch --cycles 2": "--cycles",
    # Places that cannot be written
    "run --json nowhere/rows.json": "no folder nowhere",
    "switch --json nowhere/rows.json": "no folder nowhere",
    "sim --json nowhere/rows.json": "no folder nowhere",
    "sim --json .": "--json: . is a folder",
}


@pytest.mark.parametrize(("line", "words"), WRONG.items(), ids=[line[:60] for line in WRONG])
def test_wrong_usage_is_said(call, monkeypatch, tmp_path: Path, line: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    said = call(*line.split())
    assert said.status == 2
    assert words in said.words
    assert "Traceback" not in said.err
    assert said.out == ""
