"""Renames and locks."""

from pipeline.files import hold_lock, replace_link, replace_text


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
