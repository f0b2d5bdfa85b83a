"""`coe-experts split`: pictures of one part stay together, what was said stays, and all commands obey."""

from pathlib import Path

import numpy as np
import pytest
from picture_folders import encoded, write
from test_photographs import BOARD

from apps.photos.few_pictures import Draw, Photo, drawn, line_of
from coe.board.rules import of_bytes as rules_of
from coe.cli import experts_command
from coe.errors import ConfigError
from coe.learn import labelled
from coe.pictures import finding, photographs
from coe.pictures.label_folders import Components
from coe.pictures.photographs import SPLIT, Purpose, Split


def save(path, value):
    return write(path, encoded(picture=np.full((8, 8, 3), value, np.uint8)))


@pytest.fixture
def photos(tmp_path):
    for number in range(20):
        save(tmp_path / "photos" / "D1" / "good" / f"SN{number}.png", number)
    for number in range(5):
        for view in (1, 2):
            save(tmp_path / "photos" / "D1" / "cracked" / f"X{number}__{view}.png", 100 + 2 * number + view)
    save(tmp_path / "photos" / "D1" / "missing" / "M.png", 200)
    return tmp_path / "photos"


@pytest.fixture
def board():
    return rules_of(Path("line7.yaml"), BOARD)


def purposes(photos):
    split = Split.beside(photos)
    return {name: str(purpose) for name, (purpose, _) in split.rows.items()}


def test_each_label_has_its_shares_and_parts_stay_together(photos, call):
    save(photos / "D1" / "good" / "copy of 3.png", 3)
    said = call("split", photos, command=experts_command)
    assert said.status == 0, said.err
    first = purposes(photos)
    good = [purpose for name, purpose in first.items() if "/good/SN" in name]
    assert [good.count(purpose) for purpose in Purpose] == [12, 4, 4]
    cracked = [{first[f"D1/cracked/X{number}__{view}.png"] for view in (1, 2)} for number in range(5)]
    assert sorted(len(views) for views in cracked) == [1] * 5
    assert {purpose for views in cracked for purpose in views} == {"learn", "verify", "test"}
    assert first["D1/good/copy of 3.png"] == first["D1/good/SN3.png"]
    assert first["D1/missing/M.png"] == "learn"
    said = call("split", photos / "D1", command=experts_command)
    assert (said.status, str(photos) in said.err) == (2, True), "the folder around it has the split"


def test_what_was_said_stays_when_pictures_are_added_and_taken_away(photos, call):
    call("split", photos, command=experts_command)
    first = purposes(photos)
    for number in range(20, 40):
        save(photos / "D1" / "good" / f"SN{number}.png", number)
    save(photos / "D1" / "cracked" / "X0__3.png", 250)
    (photos / "D1" / "good" / "SN7.png").unlink()
    said = call("split", photos, "--seed", "9", command=experts_command)
    assert "D1/good/SN7.png" in said.words
    second = purposes(photos)
    assert {name: second[name] for name in first} == first  # a folder that is away for a day comes back
    assert second["D1/cracked/X0__3.png"] == first["D1/cracked/X0__1.png"]
    counts = [list(second.values()).count(purpose) for purpose in Purpose]
    assert counts[1] >= 8
    assert counts[2] >= 8


def test_commands_obey_it(photos, call, board):
    call("split", photos, command=experts_command)
    said = purposes(photos)

    def of(purpose):
        return {name for name, one in said.items() if one == purpose}

    learned = labelled.of_expert(photos, board.experts["chip"], board)
    assert {one.name for one in learned} == of("learn")
    alone = labelled.of_expert(photos / "D1", board.experts["chip"], board)
    assert {f"D1/{one.name}" for one in alone} == of("learn")
    for purpose in (Purpose.VERIFY, Purpose.TEST):
        found = labelled.find(photos, board.experts, board.components, purpose=purpose)
        assert {one.name for one in found} == of(purpose)
    save(photos / "D1" / "good" / "new.png", 99)
    with pytest.raises(ConfigError, match=r"D1/good/new\.png"):
        labelled.of_expert(photos, board.experts["chip"], board)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--verify", "0.6", "--test", "0.4"), "training"),
        (("--group", "(SN"), "(SN"),
        (("--group", "SN[0-9]+"), "X0__1"),
    ],
)
def test_options_that_leave_nothing_are_refused(photos, call, options, names):
    said = call("split", photos, *options, command=experts_command)
    assert (said.status, names in said.err) == (2, True)
    assert not (photos / SPLIT).exists()


@pytest.mark.parametrize(
    "row",
    [
        "D1/good/SN0.png,D1/SN0,prove",
        "D1/good/SN0.png,D1/SN1,test\nD1/good/SN1.png,D1/SN1,learn",
        "/photos/D1/good/SN0.png,D1/SN0,test",
        "D1/good/SN0.png,D1/SN0,test\nD1\\good\\SN0.png,D1/SN0,test",
    ],
)
def test_a_split_that_makes_no_sense_is_refused(photos, board, row):
    (photos / SPLIT).write_text(f"path,group,for\n{row}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=SPLIT):
        labelled.of_expert(photos, board.experts["chip"], board)


@pytest.mark.parametrize("folder", ["D1/good", "D1/good/2026-03-01", "linked/good", "D1/linked", "other"])
def test_a_folder_of_a_label_and_one_that_is_a_link_obey_it(photos, board, call, folder):
    (photos / "D1").rename(photos.parent / "disk")
    save(photos.parent / "disk" / "good" / "2026-03-01" / "SN0.png", 77)
    if folder == "linked/good":  # the folder of the component lies on another disk, and so does one of a label
        (photos / "D1").symlink_to(photos.parent / "disk")
        folder = "D1/good"
    elif folder == "D1/linked":
        (photos / "D1").mkdir()
        (photos / "D1" / "good").symlink_to(photos.parent / "disk" / "good")
        folder = "D1"
    else:
        (photos.parent / "disk").rename(photos / "D1")
    if folder == "other":
        (photos.parent / "other").symlink_to(photos / "D1")
        folder = "../other"
    assert call("split", photos, command=experts_command).status == 0
    said = Split.beside(photos)
    assert said is not None
    found = finding.pictures(photos / folder)
    chosen = photographs.of_purpose(photos / folder, [photographs.Photograph(path) for path in found], Purpose.LEARN)
    names = {path.relative_to(photos / folder).as_posix() for path in found}
    inside = folder.replace("../other", "D1")
    learned = {name for name in names if said.rows[f"{inside}/{name}"][0] is Purpose.LEARN}
    assert {one.path.relative_to(photos / folder).as_posix() for one in chosen} == learned


def test_a_run_over_pictures_that_experts_learned_from_warns(photos, call):
    found, _ = finding.find(photos, Components(["D1"], ["cracked", "missing"]))
    assert photographs.learned_among(photos, found) == ()
    call("split", photos, command=experts_command)
    (warning,) = photographs.learned_among(photos, found)
    assert f"{list(purposes(photos).values()).count('learn')} of the 31" in warning
    tested = [one for one in found if purposes(photos)[f"{one.name}"] == "test"]
    assert photographs.learned_among(photos, tested) == ()
    (photos / SPLIT).write_text("image;fold\n1;2\n")  # of another program
    assert photographs.learned_among(photos, found) == ()


def test_a_draw_divides_no_group_and_leaves_bad_parts_to_judge():
    photos = [Photo(Path(f"{number}"), good=number % 3 > 0, group=str(number // 4)) for number in range(200)]
    learned, others = drawn(photos, 20, 20, seed=1)
    assert (sum(one.good for one in learned), len(learned)) == (20, 40)
    assert others
    assert not {one.group for one in learned} & {one.group for one in others}
    few = [Photo(Path(f"{number}"), good=number > 8) for number in range(40)]
    learned, others = drawn(few, 20, 20, seed=1)
    assert sum(not one.good for one in learned) == 4
    assert len(learned) + len(others) == 40
    assert drawn(few, 20, 20, seed=1) == (learned, others)


def test_a_row_has_the_spread_of_the_draws():
    row = line_of("nut", [Draw(10, 10, 0, 0, 1, 2.0, 0.03), Draw(10, 10, 1, 1, 0, 4.0, 0.05)])
    assert row == "| nut | 95.0% (90.0% to 100.0%) | 1 of 20 | 1 of 20 | 1 of 40 | 3.0 s | 40 ms |"
