"""Renames, JSON and locks."""

import errno
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from pipeline.common import files
from pipeline.common.files import (
    check_folder,
    create_json,
    hold_lock,
    json_bytes,
    replace_link,
    replace_text,
)


def test_replace_text_leaves_nothing_else(tmp_path):
    replace_text(tmp_path / "a.txt", "one")
    replace_text(tmp_path / "a.txt", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "two"


def test_half_a_surrogate_pair_survives_json():
    for text in ("caf\udce9.txt", "\ud83d", "été \\udce9"):
        assert json.loads(json_bytes({"file": text})) == {"file": text}


def test_replace_link(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        replace_link(tmp_path / "last", name)
    assert (tmp_path / "last").resolve() == (tmp_path / "b").resolve()


def test_a_lock_is_held_until_closed(tmp_path):
    first = hold_lock(tmp_path / "lock")
    assert first and hold_lock(tmp_path / "lock") is None
    first.close()
    assert hold_lock(tmp_path / "lock")


def test_a_writable_folder_need_not_exist(tmp_path, monkeypatch):
    assert check_folder(tmp_path / "new" / "folder") == check_folder(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # root may do anything
    for folder in (tmp_path, tmp_path / "new" / "folder", type(tmp_path)("new")):
        with pytest.raises(ValueError, match=f"{tmp_path} is not writable"):
            check_folder(folder)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("links", [True, False])
def test_one_of_many_creates_a_file_with_and_without_hard_links(tmp_path, monkeypatch, links):
    """Without: a stand-in for file systems that refuse them, which cannot be mounted here."""

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    with ProcessPoolExecutor(8, multiprocessing.get_context("fork")) as pool:
        for number in range(20):
            path = tmp_path / f"{number}.json"
            created = list(pool.map(create_json, [path] * 8, range(8)))
            assert created.count(True) == 1
            assert json.loads(path.read_text()) == created.index(True)
    assert len([*tmp_path.iterdir()]) == 20


def test_a_lock_left_by_a_dead_process_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: os.link("/dev/null", tmp_path / "x"))
    monkeypatch.setattr(files, "WITHOUT_LINKS", (errno.EXDEV, errno.EPERM))
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    (tmp_path / ".a.json.lock").mkdir()
    assert create_json(tmp_path / "a.json", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
