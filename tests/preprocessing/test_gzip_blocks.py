"""A large .gz becomes the same shards as the plain file, whoever makes them."""

import gzip

import pytest
from jobs import arguments, launch
from made_up_text import c4_lines, tree, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain
from preprocessing.readers import gzip_blocks

pytest.importorskip("rapidgzip", reason="needs requirements-extras.txt")
BLOCK = 2**13


@pytest.fixture
def lines() -> list[str]:
    """Records whose .gz is larger than a block."""
    return c4_lines(0, 150)


def shards_of(folder) -> dict[str, bytes]:
    """The shards and their indices, without the manifest, which names the input."""
    files = tree(folder)
    return {name: files[name] for name in files if name.endswith((".tar", ".npy"))}


@pytest.mark.parametrize("members", [1, 3])
def test_the_shards_of_the_plain_file(
    command, tokenizer_path, lines, tmp_path, members, monkeypatch
):
    monkeypatch.setattr(gzip_blocks, "CHUNK", 2**13)  # several points
    write_lines(tmp_path / "plain/c4-0.jsonl", lines)
    source = write_lines(tmp_path / "packed/c4-0.json.gz", [])
    step = -(-len(lines) // members)
    source.write_bytes(
        b"".join(
            gzip.compress("".join(f"{line}\n" for line in lines[k : k + step]).encode())
            for k in range(0, len(lines), step)
        )
    )
    for name, more in (("plain", []), ("packed", ["--split_gzip"])):
        options = ["--block_size", BLOCK, *more]
        output = tmp_path / name / "out/c4"
        command(pretrain.main, *arguments(tmp_path / name, tokenizer_path, output, *options))
    packed = Dataset(tmp_path / "packed/out/c4")
    assert len(packed.shards) > 5
    assert shards_of(tmp_path / "packed/out") == shards_of(tmp_path / "plain/out")
    assert packed.manifest["settings"]["split_gzip"] is True


@pytest.mark.slow
def test_ranks_share_a_file(command, tokenizer_path, lines, tmp_path):
    write_lines(tmp_path / "c4-0.json.gz", lines)
    write_lines(tmp_path / "c4-1.json.gz", c4_lines(1, 10))
    options = ["--split_gzip", "--block_size", BLOCK]
    command(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "one/c4", *options))
    result = launch(*arguments(tmp_path, tokenizer_path, tmp_path / "two/c4", *options), ranks=2)
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "one") == shards_of(tmp_path / "two")
    assert (tmp_path / "one/c4/manifest.json").read_bytes() == (
        tmp_path / "two/c4/manifest.json"
    ).read_bytes()
    assert len(Dataset(tmp_path / "two/c4").shards) > 5


def test_a_truncated_file_is_named_before_anything_is_made(
    command, tokenizer_path, lines, tmp_path
):
    path = write_lines(tmp_path / "c4-0.json.gz", lines)
    path.write_bytes(path.read_bytes()[:-100])
    options = arguments(tmp_path, tokenizer_path, tmp_path / "out", "--split_gzip")
    with pytest.raises(ValueError, match=r"c4-0\.json\.gz is corrupt or truncated"):
        command(pretrain.main, *options, "--block_size", BLOCK)
    assert not list((tmp_path / "out").rglob("*.gzidx*"))


def test_a_dry_run_writes_nothing(command, tokenizer_path, lines, tmp_path, capsys):
    write_lines(tmp_path / "c4-0.json.gz", lines)
    options = arguments(tmp_path, tokenizer_path, tmp_path / "out", "--split_gzip")
    command(pretrain.main, *options, "--block_size", BLOCK, "--dry_run")
    assert "ready" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
