"""Boxes from other programs, and masks: what is in them becomes a data set, and what does not fit is named."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from coe.annotations import annotation_file, yolo_folder
from coe.annotations.annotation_file import ReadingChoices
from coe.annotations.marked import Findings, PictureIndex
from coe.cli import experts_command
from coe.errors import ConfigError
from coe.learn import data_set
from coe.pictures.decoding import decode
from experts import yolo_images

PLAIN = ReadingChoices()


@pytest.fixture
def photos(tmp_path):
    """Three pictures of 200 x 100: board1/R1.png, board2/R1.png, good one.jpg."""
    root = tmp_path / "photos"
    for name in ("board1/R1.png", "board2/R1.png", "good one.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, 255, (100, 200, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)
    return root


def stored(place, content):
    place.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return place


def taken(source, photos, choices=PLAIN):
    findings = Findings()
    return annotation_file.read(source, photos, choices, findings)[1], findings


def boxes_of(marked, photos):
    def rounded(box):
        return box.label, tuple(round(value, 2) for value in (box.left, box.top, box.right, box.bottom))

    names = [picture.path.relative_to(photos).as_posix() for picture in marked.pictures]
    return {name: [*map(rounded, picture.boxes)] for name, picture in zip(names, marked.pictures, strict=True)}


def faults_of(source, photos, choices=PLAIN):
    """Return how many faults there are of each kind."""
    findings = Findings()
    with pytest.raises(ConfigError):
        annotation_file.read(source, photos, choices, findings)
    return sorted(map(len, findings.faults.values()))


def box(image, category, place, **more):
    return {"image_id": image, "category_id": category, "bbox": place, **more}


def coco(*boxes, **changes):
    images = [("board1/R1.png", 7), ("board2/R1.png", 9), ("good one.jpg", 12)]
    content = {
        "info": {"description": ""},
        "licenses": [],
        "categories": [{"id": id, "name": name, "supercategory": ""} for id, name in ((11, "bridge"), (3, "lifted"))],
        "images": [{"id": id, "file_name": name, "width": 200, "height": 100} for name, id in images],
        "annotations": [
            {"id": number, "iscrowd": 0, "area": 1.0, "segmentation": [], **one} for number, one in enumerate(boxes, 1)
        ],
    }
    return {**content, **changes}


def test_coco_has_pixels_and_categories_with_gaps(tmp_path, photos):
    outlined = box(7, 3, [], segmentation=[[150, 10, 190, 10, 170, 60]])
    content = coco(box(7, 11, [10, 20, 30.5, 40]), outlined, box(9, 3, [-0.4, 0, 20, 100.3]))
    marked, findings = taken(stored(tmp_path / "a.json", content), photos)
    assert marked.labels == ("lifted", "bridge")  # in the order of their numbers
    assert boxes_of(marked, photos) == {
        "board1/R1.png": [("bridge", (10, 20, 40.5, 60)), ("lifted", (150, 10, 190, 60))],
        "board2/R1.png": [("lifted", (0, 0, 19.6, 100))],  # rounding over the edge is no fault
        "good one.jpg": [],
    }
    assert not findings.notes


def test_coco_of_roboflow_and_label_studio(tmp_path, photos):
    """A category above the others is no label, unless it has boxes; names are addresses, or of uploaded files."""
    names = ("https://h/x/board1/R1.png?v=1", "/board2/R1.png", "images\\0a1b2c3d-good%20one.jpg")
    groups = [("faults", "none"), ("bridge", "faults"), ("whole", "whole"), ("lifted", "faults")]
    content = coco(
        box(1, 1, [10, 20, 30, 40]),
        images=[{"id": number, "file_name": name} for number, name in enumerate(names)],
        categories=[{"id": id, "name": name, "supercategory": above} for id, (name, above) in enumerate(groups)],
    )
    marked, findings = taken(stored(tmp_path / "a.json", content), photos)
    assert (marked.labels, len(marked.pictures)) == (("bridge", "whole", "lifted"), 3)
    assert ["faults" in note for note in findings.notes] == [True]
    content["annotations"][0]["category_id"] = 0
    marked, findings = taken(stored(tmp_path / "b.json", content), photos)
    assert (marked.labels[0], [*findings.notes]) == ("faults", [])


def test_coco_pictures_with_a_crowd_are_left_out_and_counted(tmp_path, photos):
    content = coco(box(7, 11, [10, 20, 30, 40], iscrowd="false"), box(9, 11, [0, 0, 200, 100], iscrowd=1))
    marked, findings = taken(stored(tmp_path / "a.json", content), photos)
    assert "board2/R1.png" not in boxes_of(marked, photos)
    assert sum(findings.notes.values()) == 1


def test_all_faults_are_named_at_once_and_nothing_is_written(tmp_path, photos):
    content = coco(
        *(box(7, 11, [10, 20, 0, 40]), box(7, 11, [10, 20, 5, -1])),  # no area
        *(box(7, 11, [200, 20, 10, 40]), box(7, 11, [190, 20, 30, 40])),  # outside, and over the edge
        *(box(8, 11, [1, 1, 10, 10]), box(7, 4, [1, 1, 10, 10])),  # of no image, and of no category
        box(7, 11, ["a", 1, 10, 10]),
    )
    content["images"] += [{"id": 13, "file_name": "lost.png"}, {"id": 14, "file_name": "board1/R1.png"}]
    content["images"] += [{"id": 15, "file_name": "R1.png"}, {"id": 9, "file_name": "good one.jpg"}]
    content["images"][2]["width"] = 640
    source = stored(tmp_path / "a.json", content)
    # Of size, of area, outside, over the edge, image, category, numbers, lost, twice, several of one name, one id.
    assert faults_of(source, photos) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]
    assert faults_of(source, photos, ReadingChoices(labels=("lifted",)))[-1] == 2


def test_what_reaches_over_the_edge_may_be_cut_off_there(tmp_path, photos):
    source = stored(tmp_path / "a.json", coco(box(7, 3, [190, -20, 30, 40])))
    assert faults_of(source, photos) == [1]
    marked, findings = taken(source, photos, ReadingChoices(clip=True))
    assert boxes_of(marked, photos)["board1/R1.png"] == [("lifted", (190, 0, 200, 20))]
    assert sum(findings.notes.values()) == 1


def voc(name, *objects, size="<width>200</width><height>100</height>"):
    shapes = "".join(f"<object><name>{label}</name><difficult>0</difficult>{box}</object>" for label, box in objects)
    return f"<annotation><folder>x</folder><filename>{name}</filename><size>{size}</size>{shapes}</annotation>"


BNDBOX = "<bndbox><xmin>20</xmin><ymin>10</ymin><xmax>80</xmax><ymax>60</ymax></bndbox>"


def test_a_picture_in_another_folder_than_stated_is_noted(tmp_path, photos):
    for name, noted in (("line7/photos/good one.jpg", 0), ("C:\\photos\\board1\\R1.png", 0), ("a/good one.jpg", 0)):
        _, findings = taken(stored(tmp_path / "a.xml", voc(name, ("joint", BNDBOX))), photos)
        assert len(findings.notes) - 1 == noted  # the pictures that the file does not name
    (photos / "board1" / "R7.png").write_bytes((photos / "board1" / "R1.png").read_bytes())
    _, findings = taken(stored(tmp_path / "a.xml", voc("board2/R7.png", ("joint", BNDBOX))), photos)
    assert len(findings.notes) == 2


def test_files_of_one_picture_each_lie_beside_the_pictures_or_elsewhere(tmp_path, photos):
    (notes := tmp_path / "notes").mkdir()
    stored(notes / "1.xml", voc("board1/R1.png", ("joint", BNDBOX)))
    stored(notes / "2.xml", voc("board2/R1.png"))
    stored(notes / "good one.xml", voc("renamed.jpg"))
    stored(notes / "others.json", {"a": 1})
    expected = {"board1/R1.png": [("joint", (20, 10, 80, 60))], "board2/R1.png": []}
    marked, _ = taken(notes, photos)
    assert boxes_of(marked, photos) == {**expected, "good one.jpg": []}
    assert marked.labels == ("joint",)
    stored(photos / "board1" / "R1.xml", voc("..\\board1\\R1.png", ("joint", BNDBOX)))
    marked, _ = taken(photos, photos)
    assert boxes_of(marked, photos) == {"board1/R1.png": [("joint", (20, 10, 80, 60))]}
    alone, _ = taken(photos / "board1" / "R1.xml", photos)
    assert list(boxes_of(alone, photos)) == ["board1/R1.png"]


def test_what_does_not_fit_in_files_of_one_picture_each_is_a_fault(tmp_path, photos):
    (notes := tmp_path / "notes").mkdir()
    stored(notes / "1.xml", voc("board1/R1.png", ("joint", "<robndbox><cx>1</cx></robndbox>"), ("", BNDBOX)))
    stored(notes / "2.xml", voc("board2/R1.png", size="<width>100</width><height>200</height>"))
    stored(notes / "3.xml", voc("good one.jpg", ("joint", "<polygon><x1>3</x1><y1>4</y1></polygon>")))
    assert faults_of(notes, photos) == [1, 3]
    (empty := tmp_path / "empty").mkdir()
    stored(empty / "R1.txt", "0 0.5 0.5 0.1 0.1\n")
    assert faults_of(empty, photos) == []


@pytest.mark.parametrize(
    "content",
    [
        voc("board2/R1.png", ("joint", BNDBOX))[:-9],
        '<?xml version="1.0" encoding="no-such"?>' + voc("board2/R1.png", ("joint", BNDBOX)),
        '<?xml version="1.0" encoding="utf-8"?>' + voc("board2/R1.png", ("\udcff", BNDBOX)),
    ],
    ids=["cut off", "unknown encoding", "other encoding"],
)
def test_a_picture_whose_file_cannot_be_read_is_not_a_good_one(tmp_path, photos, content):
    (notes := tmp_path / "notes").mkdir()
    stored(notes / "1.xml", voc("board1/R1.png", ("joint", BNDBOX)))
    (notes / "2.xml").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"2\.xml"):
        taken(notes, photos, ReadingChoices(unmarked_good=True))


@pytest.mark.parametrize("name", ["R1.json", "good one.jpg.json", "good one.xml"])
def test_a_file_of_another_form_tells_that_its_picture_is_not_a_good_one(tmp_path, photos, name):
    (notes := tmp_path / "notes").mkdir()
    stored(notes / "1.xml", voc("board1/R1.png", ("joint", BNDBOX)))
    stored(notes / name, "<a/>" if name.endswith("xml") else {"objects": [{"classTitle": "joint"}]})
    assert faults_of(notes, photos, ReadingChoices(unmarked_good=True)) == [1]
    assert len(taken(notes, photos)[0].pictures) == 1


@pytest.mark.parametrize(
    ("attributes", "corners"),
    [
        ({"rotation": 90.0}, (70, 30, 90, 70)),
        ({"rotation": "upright"}, (60, 40, 100, 60)),
        ({"rotation": True}, (60, 40, 100, 60)),
        (["shiny"], (60, 40, 100, 60)),
    ],
)
def test_boxes_that_cvat_turns_are_turned_in_each_of_its_formats_and_no_others(tmp_path, photos, attributes, corners):
    sources = [stored(tmp_path / "c.json", coco(box(7, 3, [60, 40, 40, 20], attributes=attributes)))]
    if isinstance(attributes, dict):
        shape = BNDBOX.replace("20<", "60<").replace("10<", "40<").replace("80<", "100<")
        said = f"<attribute><name>rotation</name><value>{attributes['rotation']}</value></attribute>"
        turned = voc("board1/R1.png", ("lifted", f"{shape}<attributes>{said}</attributes>"))
        sources.append(stored(tmp_path / "v.xml", turned))
    for source in sources:
        assert boxes_of(taken(source, photos)[0], photos)["board1/R1.png"] == [("lifted", corners)]


def test_a_file_of_pascal_voc_without_the_name_of_its_picture_is_called_as_that(tmp_path, photos):
    (notes := tmp_path / "notes").mkdir()
    nameless = re.sub("<filename>.*</filename>", "", voc("", ("joint", BNDBOX), size="<width>inf</width>"))
    stored(notes / "good one.xml", nameless)
    marked, _ = taken(notes, photos, ReadingChoices(unmarked_good=True))
    assert {picture.path.name for picture in marked.pictures if picture.boxes} == {"good one.jpg"}


def test_regions_of_masks_are_objects(tmp_path, photos):
    masks = tmp_path / "masks"
    (masks / "board1").mkdir(parents=True)
    values = np.zeros((100, 200), np.uint8)
    values[10:20, 30:50] = 1
    values[20:25, 50:60] = 1  # touches at a corner
    values[60:70, 100:101] = 2
    coloured = Image.fromarray(values).convert("P")
    coloured.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    coloured.save(masks / "board1" / "R1.png")
    Image.fromarray(values * 0).save(masks / "good one_mask.png")
    marked, findings = taken(masks, photos, ReadingChoices(labels=("scratch", "pit")))
    assert boxes_of(marked, photos) == {
        "board1/R1.png": [("scratch", (30, 10, 60, 25)), ("pit", (100, 60, 101, 70))],
        "good one.jpg": [],
    }
    assert sum(findings.notes.values()) == 1  # no mask: nobody looked at it
    marked, _ = taken(masks, photos, ReadingChoices(labels=("defect",)))
    assert [label for label, _ in boxes_of(marked, photos)["board1/R1.png"]] == ["defect", "defect"]
    coloured.putpalette([255, 255, 255, 255, 0, 0])
    coloured.save(masks / "board1" / "R1.png")  # 0 is not black: who knows what is the background
    assert faults_of(masks, photos, ReadingChoices(labels=("defect",))) == [1]
    Image.fromarray(255 - values).save(masks / "board1" / "R1.png")
    _, findings = taken(masks, photos, ReadingChoices(labels=("defect",)))
    assert sorted(findings.notes.values()) == [1, 1]  # inverted, so a box covers all
    clear = np.dstack([values * 0, values * 0, values * 0, values * 255])
    Image.fromarray(clear).save(masks / "board1" / "R1.png")  # what is drawn is in the transparency alone
    assert faults_of(masks, photos, ReadingChoices(labels=("defect",))) == [1]
    Image.fromarray(values * 100).save(masks / "board1" / "R1.png")
    Image.fromarray(values[:50]).save(masks / "good one_mask.png")
    Image.fromarray(values).save(masks / "lost.png")
    assert faults_of(masks, photos, ReadingChoices(labels=("scratch", "pit"))) == [1, 1, 2]


def test_masks_lie_beside_pictures_or_in_folders_called_otherwise(tmp_path):
    photos = tmp_path / "photos"
    values = np.zeros((100, 200), np.uint8)
    values[10:20, 30:50] = 255
    for name in ("test/cut/00.jpg", "test/dent/00.jpg", "test/good/01.jpg"):
        (photos / name).parent.mkdir(parents=True)
        Image.new("RGB", (200, 100), (90, 90, len(name))).save(photos / name)
    Image.fromarray(values).save(photos / "test" / "cut" / "00_mask.png")
    choices = ReadingChoices(labels=("defect",), unmarked_good=True)
    found = [("defect", (30, 10, 50, 20))]
    for source in (photos, tmp_path):
        marked, _ = taken(source, photos, choices)
        assert boxes_of(marked, photos) == {"test/cut/00.jpg": found, "test/dent/00.jpg": [], "test/good/01.jpg": []}
    (photos / "ground_truth" / "dent").mkdir(parents=True)
    (photos / "test" / "cut" / "00_mask.png").rename(photos / "ground_truth" / "dent" / "00_mask.png")
    marked, findings = taken(photos / "ground_truth", photos, choices)
    assert boxes_of(marked, photos) == {"test/dent/00.jpg": found, "test/cut/00.jpg": [], "test/good/01.jpg": []}
    assert not findings.notes
    Image.fromarray(values).save(photos / "ground_truth" / "dent" / "01.jpg")
    assert faults_of(photos / "ground_truth", photos, choices) == [1]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif"])
def test_a_picture_on_its_side_is_as_large_as_it_is_judged(tmp_path, name):
    turned = Image.Exif()
    turned[274] = 6
    Image.new("L", (60, 40), 90).save(tmp_path / name, exif=turned)
    size = PictureIndex(tmp_path, Findings()).size(tmp_path / name)
    assert size == decode(tmp_path / name).shape[1::-1] == (40, 60)


def test_pictures_of_a_format_that_is_not_read_are_called_so(tmp_path, photos):
    (photos / "board2" / "R1.png").rename(photos / "board2" / "R1.webp")
    content = coco(box(7, 11, [10, 20, 30, 40]))
    content["images"][1]["file_name"] = "board2/R1.webp"
    findings = Findings()
    with pytest.raises(ConfigError):
        annotation_file.read(stored(tmp_path / "a.json", content), photos, PLAIN, findings)
    assert ["PNG" in what for what in findings.faults] == [True]
    with pytest.raises(ConfigError, match="webp"):  # as it is named
        yolo_images.images_of(photos, ".", tmp_path / "data.yaml")


def test_a_folder_of_good_parts_is_no_label_against_parts(tmp_path):
    (tmp_path / "good").mkdir()
    assert data_set.labels(tmp_path, good_only=True) == (data_set.STRANGE,)
    (tmp_path / "cracked").mkdir()
    assert data_set.labels(tmp_path, good_only=True) == ("cracked",)
    assert data_set.labels(tmp_path) == ("cracked", "good")


def test_the_data_set_is_what_a_detector_learns_from(tmp_path, photos):
    content = coco(box(7, 11, [10, 20, 30, 40]), box(9, 3, [100, 0, 100, 100]))
    marked, _ = taken(stored(tmp_path / "a.json", content), photos, ReadingChoices(labels=("bridge", "lifted")))
    data = yolo_folder.write(marked, photos, tmp_path / "joints")
    assert data_set.labels(data) == ("bridge", "lifted")
    images = yolo_images.images_of(data.parent, data_set.read(data)["train"], data)
    assert [path.name for path in images] == ["board1__R1.png", "board2__R1.png", "good one.jpg"]
    texts = [(data.parent / "labels" / path.name).with_suffix(".txt").read_text() for path in images]
    assert texts == ["0 0.125000 0.400000 0.150000 0.400000\n", "1 0.750000 0.500000 0.500000 1.000000\n", ""]
    with pytest.raises(ConfigError):
        yolo_folder.write(marked, photos, tmp_path / "joints")


def test_labels_are_texts_in_the_yaml(tmp_path, photos):
    names = ["no", "1.5", "null", "a: b", "\u00e4"]
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    found = [box(7, number, [1, 1, 9, 9]) for number in range(len(names))]
    marked, _ = taken(stored(tmp_path / "a.json", coco(*found, categories=categories)), photos)
    assert list(data_set.labels(yolo_folder.write(marked, photos, tmp_path / "joints"))) == names


def test_a_sheet_shows_pictures_of_each_label_and_good_ones(tmp_path, photos):
    source = stored(tmp_path / "a.json", coco(box(9, 3, [50, 20, 100, 60])))
    marked, _ = taken(source, photos)
    shown = yolo_folder.chosen(marked)
    assert [picture.path.name for picture in shown] == ["R1.png", "R1.png", "good one.jpg"]
    assert shown[0].boxes
    assert not shown[1].boxes
    for number in range(100):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(photos / f"n{number}.png")
    marked, _ = taken(source, photos, ReadingChoices(unmarked_good=True))
    assert len(yolo_folder.chosen(marked)) == yolo_folder.SHOWN


SHARES = coco(box(7, 3, [0.1, 0.2, 0.3, 0.4]), box(7, 3, [0.5, 0.5, 0.5, 0.5]))
NO_WIDTH = coco(images=[{"id": 1, "file_name": "good one.jpg", "width": "x", "height": 3}])
EXPORT = r"COCO JSON.*VIA, CVAT.*labelme2coco.*YOLO"
REFUSED = [
    *(("a", content, r"/a\b") for content in ("", "<dataset/>", "{}", "[1]", {"images": [], "annotations": [{}]})),
    ("a.json", SHARES, "in pixels"),
    ("a.json", NO_WIDTH, "export it again"),
    ("folder/result.json", coco(box(7, 3, [60, 40, 40, 20])), r"result\.json itself"),
    ("a.json", {"a.png123": {"filename": "a.png", "size": 123, "regions": [], "file_attributes": {}}}, EXPORT),
    (
        "folder/1.json",
        {"version": "5.4", "flags": {}, "shapes": [], "imagePath": "good one.jpg", "imageData": None},
        EXPORT,
    ),
    ("a.xml", "<annotations>\n<image id='0' name='a.png'/></annotations>", EXPORT),
    ("a.json", [{"id": 1, "annotations": [], "file_upload": "a.png", "data": {"image": "a.png"}}], EXPORT),
    ("a.csv", "filename,class,xmin\na.png,x,1\n", EXPORT),
    ("a.tfrecord", "\x9e\x05\0", EXPORT),
    ("folder/a.txt", "0 0.5 0.5 0.1 0.1", EXPORT),
]


@pytest.mark.parametrize(("name", "content", "words"), REFUSED)
def test_what_holds_no_boxes_or_has_another_form_is_refused_with_what_to_export(tmp_path, photos, name, content, words):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    stored(file, content)
    with pytest.raises(ConfigError, match=words):
        taken(tmp_path / "folder" if "/" in name else file, photos)


def test_labels_in_two_spellings_are_a_fault_unless_those_that_count_are_named(tmp_path, photos):
    content = coco(box(9, 3, [50, 20, 100, 60]))
    content["categories"] += [{"id": 80 + place, "name": name} for place, name in enumerate("aA.-")]  # of a reader
    content["categories"] += [{"id": 85, "name": "1.1"}, {"id": 86, "name": "11"}]
    source = stored(tmp_path / "a.json", content)
    assert {*"aA.-", "1.1", "11"} <= {*taken(source, photos)[0].labels}
    content["categories"].append({"id": 90, "name": "Lifted"})
    source = stored(tmp_path / "a.json", content)
    with pytest.raises(ConfigError, match="Lifted and lifted"):
        taken(source, photos)
    marked, _ = taken(source, photos, ReadingChoices(labels=("lifted",)))
    assert marked.labels == ("lifted",)


def test_boxes_that_may_lie_otherwise_or_are_in_doubt_are_told(tmp_path, photos):
    turned = Image.Exif()
    turned[274] = 3
    Image.new("RGB", (200, 100)).save(photos / "turned.jpg", exif=turned)
    doubtful = voc("turned.jpg", ("lifted", BNDBOX)).replace("<difficult>0", "<difficult>1")
    marked, findings = taken(stored(tmp_path / "a.xml", doubtful), photos)
    assert [len(picture.boxes) for picture in marked.pictures] == [1]
    assert [any(word in note for note in findings.notes) for word in ("EXIF", "difficult")] == [True, True]


def test_the_command_counts_and_draws(tmp_path, photos, call):
    source = stored(tmp_path / "a.json", coco(box(9, 3, [50, 20, 100, 60])))
    said = call("boxes", source, "--images", photos, "--to", tmp_path / "joints", command=experts_command).out.split()
    assert said[said.index("lifted") + 1 :][:2] == ["1", "1"]
    with Image.open(tmp_path / "joints" / "sheet.png") as sheet:
        assert sheet.width > 600
