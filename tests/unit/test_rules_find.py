"""Where a board file is looked for: the working directory, $COE_RULES, the installed package."""

from pathlib import Path

import pytest

from coe.board import rules
from coe.errors import RulesError

BOARD = "{board: %s, experts: {e: {kind: k, labels: [ok], input: 8, then: {ok: OK}}}, components: {R1: {inspect: e}}}"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work" / "routing_rules").mkdir(parents=True)
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COE_RULES", str(tmp_path / "site"))
    return tmp_path


def write(path: Path, board: str) -> None:
    path.write_text(BOARD % board)


def test_the_working_directory_comes_before_the_variable_and_this_before_the_package(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "A", "board_a", "BOARD_A"):
        assert rules.find(name).name == "board_a.yaml"
    monkeypatch.setenv("COE_RULES", str(places / "nowhere"))
    assert rules.load("A").board == "board_a"
    monkeypatch.setenv("COE_RULES", str(places / "site"))
    assert rules.load("A").board == "board_a"
    write(places / "site" / "board_a.yaml", "from-site")
    assert rules.load("A").board == "from-site"
    write(places / "work" / "routing_rules" / "board_a.yaml", "from-work")
    assert rules.load("A").board == "from-work"


def test_a_path_is_taken_as_it_is_and_of_names_in_one_folder_the_plain_one(places: Path) -> None:
    write(places / "site" / "board_x.yaml", "prefixed")
    assert rules.load("x").board == "prefixed"
    write(places / "site" / "x.yaml", "plain")
    assert rules.load("x").board == "plain"
    write(places / "mine.yml", "mine")
    assert rules.load(places / "mine.yml").board == "mine"
    assert rules.load(str(places / "mine.yml")).board == "mine"


@pytest.mark.parametrize("path", ["no/such.yaml", "work", "a\0b.yaml", "loop.yaml"])
def test_a_path_that_is_no_file_is_said_so(path: str) -> None:
    Path("loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(RulesError, match=r"no board file for|no such board file"):
        rules.load(path)


def test_a_folder_of_photographs_leads_to_the_command_that_makes_a_board_of_it() -> None:
    Path("photos").mkdir()
    with pytest.raises(RulesError, match=r"coe-board new NAME --photos photos --run$"):
        rules.load("photos")


def test_a_name_that_is_not_found_names_the_folders_and_what_there_is(places: Path) -> None:
    write(places / "site" / "board_mainboard.yaml", "m")
    with pytest.raises(RulesError) as caught:
        rules.load("mainbord")
    message = str(caught.value)
    assert message.startswith(f"no board file for 'mainbord' in routing_rules, {places / 'site'}, ")
    assert message.endswith("; did you mean 'mainboard'?")
    write(places / "site" / "line7.yaml", "l")
    with pytest.raises(RulesError, match=r"did you mean .*site/line7\.yaml"):
        rules.load("line7.yaml")
