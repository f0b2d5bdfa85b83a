"""Pictures leave by time and by free space, and with an archive none leaves before its copy is proved."""

import errno
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from serve_rows import accepted, decision, ng
from stations import grey
from waiting import eventually

from coe.serve import command, retention
from coe.serve.clock import DAY_US, now_us
from coe.serve.credentials import ARCHIVE
from coe.serve.database import board_rows, views
from coe.serve.database.tables import NewView
from coe.serve.picture_folder import Pictures
from coe.serve.retention import ArchiveFailed, sweep
from coe.serve.service_config import Retention

LATER_US = now_us() + 400 * DAY_US


def board_with_picture(database, pictures, key, *calls):
    with database.writing() as connection:
        receiving = pictures.receive()
        receiving.write(grey(len(key)) + key.encode())
        kept = receiving.keep()
        view = views.add(connection, NewView(key, "top", kept, receiving.sha256, receiving.size_bytes, 2500, now_us()))
        board = accepted(connection, key, serial=f"S-{key}")
        opened = [ng(refdes, view_id=view.id) for refdes in calls]
        board_rows.decide(connection, decision(board, *opened, at_us=now_us()))
    return kept


@pytest.fixture
def pictures(tmp_path):
    folder = Pictures(tmp_path / "pictures")
    folder.prepare()
    return folder


@pytest.fixture
def file(sqlite_database, pictures):
    return board_with_picture(sqlite_database, pictures, "k1")


def test_the_oldest_pictures_of_good_boards_go_until_there_is_room(sqlite_database, pictures):
    files = [board_with_picture(sqlite_database, pictures, f"k{number}") for number in range(3)]
    called = board_with_picture(sqlite_database, pictures, "open", "R1")
    shares = iter([0.05, 0.05, *[0.2] * 9])
    keep = Retention(free_share=0.1)
    assert sweep(sqlite_database, pictures, keep, now_us(), free_share=lambda: 0.5) == 0
    assert sweep(sqlite_database, pictures, keep, now_us() + 1, free_share=lambda: next(shares)) == 0
    assert sweep(sqlite_database, pictures, keep, now_us() + 1, free_share=lambda: 0.01) == 3
    assert [pictures.path(file).exists() for file in (*files, called)] == [False, False, False, True]


def archive_in(folder):
    folder.mkdir(exist_ok=True)
    (folder / retention.MARK).touch()
    return folder


def index_of(folder):
    return [json.loads(line) for file in folder.glob("index-*.jsonl") for line in file.read_text().splitlines()]


def test_a_picture_goes_once_its_copy_is_proved(sqlite_database, pictures, tmp_path):
    file = board_with_picture(sqlite_database, pictures, "k1")
    damaged = board_with_picture(sqlite_database, pictures, "k2")
    content = pictures.path(file).read_bytes()
    pictures.path(damaged).write_bytes(b"other")
    folder = tmp_path / "archive"
    keep = Retention(archive=folder)
    for _ in range(2):
        with pytest.raises(ArchiveFailed, match=r"does not exist|is missing"):
            sweep(sqlite_database, pictures, keep, LATER_US)
        assert pictures.path(file).exists()
        folder.mkdir(exist_ok=True)  # as the place of a disk that is not mounted
    archive_in(folder)
    with pytest.raises(ArchiveFailed, match=damaged):
        sweep(sqlite_database, pictures, keep, LATER_US)
    assert [pictures.path(one).exists() for one in (file, damaged)] == [False, True]
    assert (folder / file).read_bytes() == content
    [row] = index_of(folder)
    assert (row["file"], row["key"], row["serial"], row["verdict"], row["recipe"]) == (file, "k1", "S-k1", "OK", "demo")
    assert retention.prove(folder).wrong == []
    (folder / file).write_bytes(b"changed")
    assert retention.prove(folder) == retention.ArchiveProof(0, [file])


def test_pictures_whose_disk_is_away_are_archived_once_it_is_back(sqlite_database, pictures, file, tmp_path):
    keep = Retention(archive=archive_in(tmp_path / "archive"))
    pictures.folder.rename(tmp_path / "unmounted")
    with pytest.raises(OSError, match="pictures"):
        sweep(sqlite_database, pictures, keep, LATER_US)
    Pictures(pictures.folder).prepare()  # a service that starts without the disk
    with pytest.raises(ArchiveFailed, match="mount the disk"):
        sweep(sqlite_database, pictures, keep, LATER_US)
    shutil.rmtree(pictures.folder)
    (tmp_path / "unmounted").rename(pictures.folder)
    assert sweep(sqlite_database, pictures, keep, LATER_US) == 1
    assert retention.prove(tmp_path / "archive") == retention.ArchiveProof(1, [])
    assert [row["file"] for row in index_of(tmp_path / "archive")] == [file]


def test_a_picture_stays_if_the_archive_takes_no_more_or_goes_away_while_it_is_copied(
    sqlite_database, pictures, file, tmp_path, monkeypatch
):
    folder, copy = archive_in(tmp_path / "archive"), shutil.copyfile
    full = OSError(errno.ENOSPC, "no room", "picture", None, str(folder / "copy"))

    def copied(source, target):
        copy(source, target)
        (folder / retention.MARK).unlink(missing_ok=True)

    for copying, said in ((Mock(side_effect=full), f"^{folder}/copy: no room; .* {folder}$"), (copied, "is missing")):
        monkeypatch.setattr(shutil, "copyfile", copying)
        with pytest.raises(ArchiveFailed, match=said):
            sweep(sqlite_database, pictures, Retention(archive=folder), LATER_US)
    assert pictures.path(file).exists()
    archive_in(folder)
    assert sweep(sqlite_database, pictures, Retention(archive=folder), LATER_US) == 1


def test_an_archive_that_hangs_is_told_and_asked_once(sqlite_database, pictures, file, answers, tmp_path, monkeypatch):
    folder, copy = archive_in(tmp_path / "archive"), shutil.copyfile
    asked = list[Path]()

    def copied(source, target):
        asked.append(source)
        answers.wait()
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copied)
    for _ in range(3):
        with pytest.raises(ArchiveFailed, match="does not answer"):
            sweep(sqlite_database, pictures, Retention(archive=folder), LATER_US)
    assert (len(asked), pictures.path(file).exists()) == (1, True)
    answers.set()
    monkeypatch.setenv("COE_READ_TIMEOUT", "30s")
    eventually(lambda: retention.prove(folder).sound == 1)
    eventually(retention._late[folder].is_back)
    assert sweep(sqlite_database, pictures, Retention(archive=folder), LATER_US) == 1


def test_an_archive_that_hangs_is_told_also_where_room_is_wanted(pictures, answers, tmp_path):
    class Hung(type(tmp_path)):
        def stat(self, **given):
            answers.wait()
            return super().stat(**given)

    with pytest.raises(ArchiveFailed, match="does not answer"):
        retention.expect_other_disk(Hung(archive_in(tmp_path / "archive")), pictures)


def test_for_room_no_picture_goes_into_an_archive_on_the_same_disk(sqlite_database, pictures, file, tmp_path):
    keep = Retention(archive=archive_in(tmp_path / "archive"), free_share=0.5)
    for at_us, stays in ((now_us() + 1, True), (LATER_US, False)):  # at last its time has come
        with pytest.raises(ArchiveFailed, match="disk"):
            sweep(sqlite_database, pictures, keep, at_us, free_share=lambda: 0.1)
        assert pictures.path(file).exists() == stays


def test_the_folder_of_the_pictures_is_no_archive(sqlite_database, pictures, file, tmp_path):
    (tmp_path / "archive").symlink_to(archive_in(pictures.folder))
    with pytest.raises(ArchiveFailed, match="itself"):
        sweep(sqlite_database, pictures, Retention(archive=tmp_path / "archive"), LATER_US)
    assert pictures.path(file).exists()


def test_a_crash_or_a_full_disk_within_a_line_of_the_index_loses_no_picture(
    sqlite_database, pictures, file, tmp_path, monkeypatch
):
    folder = archive_in(tmp_path / "archive")
    rows = sqlite_database.write(retention.rows_of, [1])
    assert retention.keep(folder, pictures, rows, LATER_US) == []
    [index] = folder.glob("index-*.jsonl")
    whole = index.read_bytes()
    for torn in (b"", whole[:40], whole + whole[:-1]):
        index.write_bytes(torn)
        assert retention.prove(folder).wrong == []
        retention.keep(folder, pictures, rows, LATER_US)
        assert {row["file"] for row in index_of(folder)} == {file}
        assert retention.prove(folder) == retention.ArchiveProof(1, [])
    pictures.folder.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", pictures.folder)  # as to a larger disk
    retention.keep(folder, pictures, rows, LATER_US)
    assert [*folder.glob("index-*.jsonl")] == [index]
    other = Pictures(tmp_path / "other" / "pictures")
    other.prepare()
    retention.keep(folder, other, rows, LATER_US)  # a station that shares the archive cuts no line of this one
    assert len([*folder.glob("index-*.jsonl")]) == 2
    (other.folder.parent / ARCHIVE).unlink()
    monkeypatch.setattr(retention, "read_or_make", Mock(side_effect=OSError(errno.ENOSPC, "no room")))
    retention.keep(folder, other, rows, LATER_US)
    assert len([*folder.glob("index-*.jsonl")]) == 3, "its disk is full, for which pictures go"
    assert sweep(sqlite_database, pictures, Retention(archive=folder), LATER_US) == 1
    assert retention.prove(folder) == retention.ArchiveProof(1, [])
    assert not pictures.path(file).exists()


def test_the_command_tells_of_changed_pictures(tmp_path, call):
    folder, config = tmp_path / "archive", tmp_path / "serve.yaml"
    folder.mkdir()
    config.write_text("station: a\nretention: {archive: archive}\n")
    said = call("verify-archive", config, command=command)
    assert (said.status > 1, retention.MARK in said.words) == (True, True), "what may not be mounted is not sound"
    archive_in(folder)
    assert call("verify-archive", config, command=command).status == 0
    (folder / "index-2026-01.jsonl").write_text(json.dumps({"file": "00/ab", "sha256": "0" * 64}) + "\n{\n")
    said = call("verify-archive", config, command=command)
    assert said.status == 1
    assert all(wrong in said.words for wrong in ("00/ab", "index-2026-01.jsonl, line 2"))
