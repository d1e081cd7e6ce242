"""The documents of a test set, with their references."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.inference.decode import encode_source
from pipeline.shards import Dataset
from pipeline.tokenizer import open_tokenizer


@dataclass(frozen=True)
class Example:
    """A test document: its ids (L,), its text and the untruncated references of all its pairs.

    `target` are the ids (T,) of its first reference, truncated as in the dataset. A hidden document
    has no references, and EOS alone as its target.
    """

    id: str
    source: np.ndarray
    document: str
    references: list[str]
    target: np.ndarray


class Examples:
    """The first `limit` (0: all) documents of a summarisation dataset, in its order.

    Those without a reference are left out unless `hidden`. Samples with the same id and text are
    pairs of one document, at the position of the first. Raises ValueError when the dataset is
    empty, of another kind or without any reference.
    """

    def __init__(
        self,
        dataset: Dataset,
        source_length: int | None = None,
        limit: int = 0,
        hidden: bool = False,
    ) -> None:
        if dataset.manifest["kind"] != "summarisation":
            raise ValueError(
                f"{dataset.path} holds {dataset.manifest['kind']} samples, evaluation needs "
                "references; make the dataset with `python -m preprocessing.finetune`"
            )
        if len(dataset) == 0:
            raise ValueError(f"{dataset.path} holds no samples: nothing to evaluate")
        self.dataset, self.source_length = dataset, source_length
        self.tokenizer = open_tokenizer(dataset.tokenizer_path)
        documents: dict[tuple[str, int], list[int]] = {}
        referred: set[tuple[str, int]] = set()
        for index in range(len(dataset)):
            metadata = dataset[index].metadata
            document = metadata["id"], hash(metadata["source_text"])
            documents.setdefault(document, []).append(index)
            if metadata["references"]:
                referred.add(document)
        kept = {key: pairs for key, pairs in documents.items() if hidden or key in referred}
        self.without_references = len(documents) - len(referred)
        if not kept:
            raise ValueError(
                f"{dataset.path}: none of its {len(documents)} documents has a reference to score "
                "against; evaluate a split that has them, or give --scrolls_submission to "
                "summarise without scoring"
            )
        self.pairs = list(kept.values())[: limit or None]
        self.ids = [id for id, _ in kept][: limit or None]

    def __len__(self) -> int:
        return len(self.pairs)

    def repeated_ids(self) -> list[str]:
        """Ids shared by several documents."""
        return [id for id, times in Counter(self.ids).items() if times > 1]

    def mean_reference_words(self) -> int:
        """`mean_words` of all references, without encoding any source."""
        indices = (pair for pairs in self.pairs for pair in pairs)
        return mean_words(text for i in indices for text in self.dataset[i].metadata["references"])

    def __getitem__(self, index: int) -> Example:
        samples = [self.dataset[pair] for pair in self.pairs[index]]
        sample = next((one for one in samples if one.metadata["references"]), samples[0])
        document, source = sample.metadata["source_text"], sample.source
        references = [text for one in samples for text in one.metadata["references"]]
        if self.source_length is not None:
            source = encode_source(self.tokenizer, document, self.source_length)
        return Example(sample.metadata["id"], source, document, references, sample.target)


def mean_words(texts: Iterable[str]) -> int:
    """Mean number of words (separated by white space) of the texts, rounded, at least 1."""
    counts = [len(text.split()) for text in texts]
    return max(1, round(sum(counts) / max(1, len(counts))))
