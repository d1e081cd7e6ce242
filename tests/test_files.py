"""Renames and locks."""

import os

import pytest

from pipeline.files import check_folder, hold_lock, replace_link, replace_text


def test_replace_text_leaves_nothing_else(tmp_path):
    replace_text(tmp_path / "a.txt", "one")
    replace_text(tmp_path / "a.txt", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "two"


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


def test_a_folder_that_can_be_written_to_need_not_exist(tmp_path, monkeypatch):
    assert check_folder(tmp_path / "new" / "folder") == check_folder(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # root may do anything
    for folder in (tmp_path, tmp_path / "new" / "folder", type(tmp_path)("new")):
        with pytest.raises(ValueError, match=f"{tmp_path} cannot be written to"):
            check_folder(folder)
    assert not list(tmp_path.iterdir())
