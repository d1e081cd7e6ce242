"""Whether a dataset is what its manifest says, byte by byte and sample by sample."""

import tarfile
from collections.abc import Iterator, Sequence

from pipeline.command_line import described
from pipeline.progress import Progress
from pipeline.shards import Dataset, Sample, file_sha256
from pipeline.tokenizer import EOS_ID


def faults(dataset: Dataset, shards: Sequence[int]) -> Iterator[str]:
    """The first fault of each of the shards (numbers) that has one, naming file and place.

    Checked: size and sha256 of the tar; its members against the index's offsets and sizes; of each
    sample the lengths, the ids (in the vocabulary, EOS last, SentencePiece's only there) and the
    sentence ends; and that no key occurs twice. The tokenizer's sha256 is checked as the dataset
    is opened.
    """
    check = _Check(dataset)
    bar = Progress(
        f"{dataset.path}, checked", sum(dataset.shards[i].samples for i in shards), "samples"
    )
    for shard in shards:
        path = dataset.path / f"{dataset.shards[shard].name}.tar"
        try:
            for _ in check.samples(shard):
                bar.update()
        except (ValueError, OSError, tarfile.TarError) as error:
            said = described(error)
            named = said if str(path.parent) in said else f"{path}: {said}"
            yield f"{named}; delete that .tar and the command that made the folder makes it again"
    bar.close()
    yield from _miscounts(dataset)


def _miscounts(dataset: Dataset) -> Iterator[str]:
    """What the manifest's counts say that its shards do not."""
    counts = dataset.manifest["counts"]
    if not {"documents", "kept", "excluded"} <= counts.keys():
        return  # made by another program
    if counts["kept"] != len(dataset):
        yield f"{dataset.path}: counts say kept {counts['kept']}, the shards hold {len(dataset)}"
    documents = counts["kept"] + sum(counts["excluded"].values())
    if counts["documents"] != documents:
        yield f"{dataset.path}: kept and excluded add up to {documents}, not {counts['documents']}"


class _Check:
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.vocab_size: int = dataset.manifest["tokenizer"]["vocab_size"]
        # Other tokenizers' EOS is not recorded: then what ends the first sample ends all.
        self.sentencepiece = dataset.tokenizer_path.suffix == ".model"
        self.eos_id = EOS_ID if self.sentencepiece else None
        self.shard_of: dict[str, int] = {}  # of keys' first part, a shard's own: few, unlike keys

    def samples(self, shard: int) -> Iterator[None]:
        """Yields after each good sample; ValueError says what is wrong, and where."""
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
            while member := tar.next():
                tar.members = []  # type: ignore[attr-defined]  # it would keep all it has seen
                where = f"sample {row} ({member.name})"
                if row >= len(index):
                    raise ValueError(f"{where} is not in the index of {len(index)} rows")
                offset, length, *lengths = index[row].tolist()
                if (member.offset_data, member.size) != (offset, length):
                    raise ValueError(
                        f"{where} is {member.size} bytes at {member.offset_data}, the index says "
                        f"{length} at {offset}"
                    )
                self._key(member.name, shard, keys)
                try:
                    self._sample(dataset.read(shard, offset, length), lengths)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None
                row += 1
                yield
        if row != len(index):
            raise ValueError(f"holds {row} samples, the index has {len(index)} rows")

    def _key(self, name: str, shard: int, keys: set[str]) -> None:
        key, dot, suffix = name.partition(".")
        if dot + suffix != ".mp" or key in keys:
            raise ValueError(f"{name} is no new sample: KEY.mp was expected, each key once")
        keys.add(key)
        other = self.shard_of.setdefault(key.partition("-")[0], shard)
        if other != shard:
            raise ValueError(
                f"key {key} begins as those of {self.dataset.shards[other].name}.tar do"
            )

    def _sample(self, sample: Sample, lengths: Sequence[int]) -> None:
        for side, ids, length in zip(
            ("source", "target"), (sample.source, sample.target), lengths, strict=True
        ):
            if len(ids) != length:
                raise ValueError(f"its {side} has {len(ids)} ids, the index says {length}")
            if not length:
                raise ValueError(f"its {side} has no ids, not even the end")
            if self.eos_id is None:
                self.eos_id = int(ids[-1])
            if int(ids.max()) >= self.vocab_size:
                raise ValueError(
                    f"its {side} has id {int(ids.max())}, the vocabulary has {self.vocab_size}"
                )
            ends_within = self.sentencepiece and (ids[:-1] == EOS_ID).any()
            if ids[-1] != self.eos_id or ends_within:
                raise ValueError(f"its {side} has no id {self.eos_id} at its end, or one before")
            ends = sample.metadata.get(f"{side}_sentence_ends")
            if ends is not None and (ends != sorted(ends) or (ends or [0])[-1] != length - 1):
                raise ValueError(f"its {side}_sentence_ends do not lead to its last id: {ends}")
