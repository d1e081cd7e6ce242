"""CPU time of pre-training's preprocessing, stage by stage, against SentencePiece alone."""

import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pipeline.common.sentences import SPLITTER, split_sentences
from pipeline.common.stores import Location
from pipeline.shards import Sample, id_dtype_for, write_shard
from pipeline.tokenizer import Tokenizer
from preprocessing.dataset.gap_sentence_samples import GapSampleSettings, samples
from preprocessing.dataset.samples import make_sample, sentence_ends
from preprocessing.dataset.statistics import Statistics
from preprocessing.gap_sentences import GapSentences, mask_gap_sentences
from preprocessing.jobs.run import few_collections
from preprocessing.readers.corpora import read_c4
from preprocessing.readers.entries import Entry, Item
from preprocessing.readers.inputs import find_inputs

C4_EN_DOCUMENTS = 364_868_892  # rows of the 1,024 training files of allenai/c4, en
ROUNDS = 5
BLOCK_DOCUMENTS = 256  # about as many as the flow scores and encodes at once
FLOW, BASELINE = "whole flow", "SentencePiece alone"
SCORE = "score and select"
STAGES = ("gunzip", "JSON", "sentences", SCORE, "tokenise", "sample", "write")


def measure(
    patterns: Sequence[str], tokenizer_path: str | Path, limit: int | None
) -> dict[str, Any]:
    """CPU microseconds per document of each stage, of the whole flow and of the baseline.

    The flow is the one of preprocessing.pretrain: `samples` into `write_shard`, in this process,
    over the first `limit` documents (None: all). The baseline encodes their texts, one call each.
    The stages are the flow's functions, each over all output of the one before. All are
    interleaved; each has its minimum over ROUNDS. Raises ValueError where the inputs have no usable
    document.
    """
    paths = find_inputs(patterns)
    tokenizer = Tokenizer(tokenizer_path)
    settings = GapSampleSettings(GapSentences())

    def entries() -> Iterator[Entry]:
        return islice(chain.from_iterable(read_c4(Item(path)) for path in paths), limit)

    texts = [entry.record["text"] for entry in entries() if not isinstance(entry.record, str)]
    if not texts:
        raise ValueError(f"the {len(paths)} files of --input hold no documents in C4's format")
    lines = list(islice(_lines(paths), limit))
    documents = [split_sentences(text) for text in texts]
    by_block = [*_in_blocks(documents)]
    gaps = [*chain.from_iterable(map(settings.gap_sentences.select_all, by_block))]
    chosen = [(s, g) for s, g in zip(documents, gaps, strict=True) if g]
    rows = [(tokenizer.encode_batch(sentences), g) for sentences, g in chosen]
    kept = [sentences for sentences, _ in chosen]
    blocks = [[*chain.from_iterable(block)] for block in _in_blocks(kept)]
    id_dtype = id_dtype_for(tokenizer.vocab_size)

    def flow() -> Iterator[tuple[str, Sample]]:
        return samples(entries(), Statistics(), tokenizer=tokenizer, settings=settings)

    def write_flow() -> None:
        with few_collections():
            write_shard(shard, flow(), id_dtype)

    made = list(flow())
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "shard"
        work: dict[str, Callable[[], object]] = {
            BASELINE: lambda: [tokenizer.encode(text) for text in texts],
            FLOW: write_flow,
            "gunzip": lambda: list(islice(_lines(paths), limit)),
            "JSON": lambda: list(_parsed(lines)),
            "sentences": lambda: [split_sentences(text) for text in texts],
            SCORE: lambda: [settings.gap_sentences.select_all(block) for block in by_block],
            "tokenise": lambda: [tokenizer.encode_batch(block) for block in blocks],
            "sample": lambda: [_sample(row, g, settings, tokenizer) for row, g in rows],
            "write": lambda: write_shard(shard, made, id_dtype),
        }
        seconds = _best(work)
    each = {name: 1e6 * value / len(lines) for name, value in seconds.items()}
    return {
        "documents": len(lines),
        "kept": len(made),
        "characters": sum(map(len, texts)),
        "tokens": sum(len(tokenizer.encode(text)) for text in texts),
        "splitter": SPLITTER,
        "microseconds": each,
        "ratio": each[FLOW] / each[BASELINE],
        "scored_per_s": 1e6 / each[SCORE],
        "c4_en_core_hours": each[FLOW] * C4_EN_DOCUMENTS / 3.6e9,
    }


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the printed table."""
    each, documents = found["microseconds"], found["documents"]
    yield (
        f"{documents:,} documents of {found['characters'] / documents:,.0f} characters, "
        f"{found['tokens'] / documents:,.0f} tokens; {found['kept']:,} kept; "
        "CPU time, one core"
    )
    yield f"{'':22}{'us a document':>14}{'of SentencePiece':>18}"
    for name in (*STAGES, FLOW, BASELINE):
        yield f"{name:22}{each[name]:14.1f}{each[name] / each[BASELINE]:18.2f}"
    yield f"whole flow / SentencePiece alone: {found['ratio']:.2f}"
    yield f"scoring and selection alone: {found['scored_per_s']:,.0f} documents a second"
    yield (
        f"all of C4 en, {C4_EN_DOCUMENTS:,} documents like these: "
        f"{found['c4_en_core_hours']:.0f} core-hours"
    )


def _in_blocks(documents: Sequence[list[str]]) -> Iterator[Sequence[list[str]]]:
    for start in range(0, len(documents), BLOCK_DOCUMENTS):
        yield documents[start : start + BLOCK_DOCUMENTS]


def _lines(paths: Sequence[Location]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as raw:
            yield from gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw


def _parsed(lines: Sequence[bytes]) -> Iterator[object]:
    for line in lines:
        with suppress(ValueError):  # the flow counts it as excluded
            yield json.loads(line.decode())


def _sample(
    ids: list[list[int]], gaps: list[int], settings: GapSampleSettings, tokenizer: Tokenizer
) -> list[int]:
    source, target = mask_gap_sentences(ids, gaps), [ids[i] for i in gaps]
    lengths = (settings.source_length, settings.target_length)
    make_sample(source, target, {"gap_sentences": gaps}, lengths, tokenizer, Statistics())
    return sentence_ends(source, settings.source_length - 1)


def _best(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    """CPU seconds of each piece of work: the minimum over ROUNDS, interleaved."""
    least = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, run in work.items():
            began = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - began)
    return least
