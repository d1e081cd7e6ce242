"""Verification of a dataset against its manifest, byte by byte and sample by sample."""

import tarfile
from collections.abc import Iterator, Sequence

from pipeline.common.command_line import described
from pipeline.common.progress import Progress
from pipeline.shards import Dataset, Sample, file_sha256
from pipeline.tokenizer import EOS_ID


def faults(dataset: Dataset, shards: Sequence[int]) -> Iterator[str]:
    """The first fault of each of the shards (numbers) that has one, with its file and position.

    Checks the tar's size and sha256; its members against the index's offsets and sizes; each
    sample's lengths, ids (within the vocabulary, EOS last; SentencePiece's EOS only there) and
    sentence ends; and that keys are unique. The tokenizer's sha256 is checked when the dataset is
    opened.
    """
    check = _ShardCheck(dataset)
    bar = Progress(
        f"{dataset.path}, verified", sum(dataset.shards[i].samples for i in shards), "samples"
    )
    for shard in shards:
        path = dataset.path / f"{dataset.shards[shard].name}.tar"
        try:
            for _ in check.samples(shard):
                bar.update()
        except (ValueError, OSError, tarfile.TarError) as error:
            fault = described(error)
            named = fault if str(path.parent) in fault else f"{path}: {fault}"
            yield f"{named}; delete that .tar and run the command that made the folder again"
    bar.close()
    yield from _count_faults(dataset)


def _count_faults(dataset: Dataset) -> Iterator[str]:
    """Contradictions between the manifest's counts, or between them and the shards."""
    counts = dataset.manifest["counts"]
    if not {"documents", "kept", "excluded"} <= counts.keys():
        return  # written by another program
    if counts["kept"] != len(dataset):
        yield f"{dataset.path}: counts say kept {counts['kept']}, the shards hold {len(dataset)}"
    documents = counts["kept"] + sum(counts["excluded"].values())
    if counts["documents"] != documents:
        yield f"{dataset.path}: kept and excluded add up to {documents}, not {counts['documents']}"


class _ShardCheck:
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.vocab_size: int = dataset.manifest["tokenizer"]["vocab_size"]
        # Other tokenizers' EOS is not recorded: all samples must end as the first one does.
        self.sentencepiece = dataset.tokenizer_path.suffix == ".model"
        self.eos_id = EOS_ID if self.sentencepiece else None
        self.shard_of: dict[str, int] = {}  # by the first part of a key, which few values have

    def samples(self, shard: int) -> Iterator[None]:
        """Yield after each valid sample. Raises ValueError with the fault and its position."""
        dataset, expected = self.dataset, self.dataset.shards[shard]
        path = dataset.path / f"{expected.name}.tar"
        index = dataset.index(shard)
        size = path.stat().st_size
        if size != expected.bytes:
            raise ValueError(f"{size} bytes, the manifest says {expected.bytes}")
        digest = file_sha256(path)
        if digest != expected.sha256:
            raise ValueError(f"sha256 is {digest}, the manifest says {expected.sha256}")
        keys: set[str] = set()
        with tarfile.open(path) as tar:
            row = 0
            for member in tar:  # next() fails on an empty archive in Python 3.10
                tar.members = []  # type: ignore[attr-defined]  # it would keep every member in memory
                where = f"sample {row} ({member.name})"
                if row >= len(index):
                    raise ValueError(f"{where} is not in the index of {len(index)} rows")
                offset, length, *lengths = index[row].tolist()
                if (member.offset_data, member.size) != (offset, length):
                    raise ValueError(
                        f"{where} is {member.size} bytes at {member.offset_data}, the index says "
                        f"{length} at {offset}"
                    )
                self._check_key(member.name, shard, keys)
                try:
                    self._check_sample(dataset.read(shard, offset, length), lengths)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None
                row += 1
                yield
        if row != len(index):
            raise ValueError(f"holds {row} samples, the index has {len(index)} rows")

    def _check_key(self, name: str, shard: int, keys: set[str]) -> None:
        key, dot, suffix = name.partition(".")
        if dot + suffix != ".mp" or key in keys:
            raise ValueError(f"{name} is not a new sample: expected KEY.mp, each key once")
        keys.add(key)
        other = self.shard_of.setdefault(key.partition("-")[0], shard)
        if other != shard:
            raise ValueError(
                f"key {key} has the prefix of the keys in {self.dataset.shards[other].name}.tar"
            )

    def _check_sample(self, sample: Sample, lengths: Sequence[int]) -> None:
        for side, ids, length in zip(
            ("source", "target"), (sample.source, sample.target), lengths, strict=True
        ):
            if len(ids) != length:
                raise ValueError(f"its {side} has {len(ids)} ids, the index says {length}")
            if not length:
                raise ValueError(f"its {side} has no ids, not even EOS")
            if self.eos_id is None:
                self.eos_id = int(ids[-1])
            if int(ids.max()) >= self.vocab_size:
                raise ValueError(
                    f"its {side} has id {int(ids.max())}, the vocabulary has {self.vocab_size} ids"
                )
            ends_within = self.sentencepiece and (ids[:-1] == EOS_ID).any()
            if ids[-1] != self.eos_id or ends_within:
                raise ValueError(
                    f"its {side} must have EOS (id {self.eos_id}) at its end and only there"
                )
            ends = sample.metadata.get(f"{side}_sentence_ends")
            if ends is not None and (ends != sorted(ends) or (ends or [0])[-1] != length - 1):
                raise ValueError(f"its {side}_sentence_ends do not end at its last id: {ends}")
