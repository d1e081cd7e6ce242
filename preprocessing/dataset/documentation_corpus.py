"""The documentation corpus: pre-training texts and a summarisation set without leaks.

Splits share neither packages nor documents; packages of the validation and test splits are left out
of the pre-training texts.
"""

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

from pipeline.common.progress import progress
from preprocessing.readers.documented_modules import read_module
from preprocessing.readers.python_sources import (
    TOPICS,
    Pair,
    find_modules,
    random_key,
    sample_modules,
    skeleton,
)

TEXT_FILES = 8
PROCESSES = 2
HELD_OUT = {"test": 0.065, "validation": 0.045}  # shares of all pairs
WHOLE_HELD_OUT = {"test": 0.1, "validation": 0.05}  # whole pairs are fewer and longer
LARGEST_SHARE = 0.015  # a package with a larger share of the pairs would fill a split alone: train


def build(
    requirements: Path, limit_files: int | None, whole: bool = False, passage: int | None = None
) -> tuple[dict[str, bytes], dict[str, int]]:
    """({file name: content}, counts) of the corpus; pairs as in `read_module`.

    `passage` cuts the texts into passages of that many characters, in the same file. Raises
    ValueError where a split has no pairs.
    """
    modules = find_modules(requirements)
    if limit_files is not None:
        topics = [module for module in modules if module.package == TOPICS]
        others = [module for module in modules if module.package != TOPICS]
        modules = topics + sample_modules(others, limit_files)
    with ProcessPoolExecutor(PROCESSES) as pool:
        results = pool.map(partial(read_module, whole=whole), modules, chunksize=16)
        read = list(progress(results, len(modules), "Docstrings", "files"))
    found = list(chain.from_iterable(module.pairs for module in read))
    pairs = without_duplicates(found)
    splits = split_packages(pairs, WHOLE_HELD_OUT if whole else HELD_OUT)
    trains = [module for module in read if splits.get(module.package, "train") == "train"]
    parts = without_duplicates(chain.from_iterable(module.parts for module in trains), pairs)
    texts: dict[str, str] = {}  # text to url: the first of equal ones
    for url, text in chain.from_iterable(module.texts for module in trains):
        texts.setdefault(text, url)
    leaks = leaked([pair for pair in pairs if splits[pair.package] != "train"], list(texts))
    files = {}
    counts = {
        "source_files": len(modules),
        "pairs_found": len(found),
        "pairs_duplicate": len(found) - len(pairs),
        "pairs_leaked": len(leaks),
        "texts": len(texts),
        "text_characters": sum(map(len, texts)),
        "packages": len(splits),
    }
    for split in ("train", *reversed(HELD_OUT)):
        kept = [p for p in pairs if splits[p.package] == split and p.id not in leaks]
        counts[f"pairs_{split}"] = len(kept)
        counts[f"packages_{split}"] = len({pair.package for pair in kept})
        if split == "train" and whole:
            counts["parts_train"] = len(parts)
            kept += parts
        records = [{"id": p.id, "document": p.document, "summary": p.summary} for p in kept]
        files[f"summaries-{split}.jsonl"] = _json_lines(records)
    if not all(counts[f"pairs_{split}"] for split in ("train", *HELD_OUT)):
        raise ValueError(
            f"{len(modules)} source files leave a split without pairs; give a larger --limit_files"
        )
    return files | _text_files(texts, passage), counts


def _text_files(texts: Mapping[str, str], passage: int | None) -> dict[str, bytes]:
    """{file name: content} of the texts (text to url) in C4's format."""
    files = {}
    for number in range(TEXT_FILES):
        name = f"documentation-{number:05d}-of-{TEXT_FILES:05d}.json.gz"
        documents = [
            {
                "text": piece,
                "timestamp": "2000-01-01T00:00:00Z",
                "url": f"https://docs.invalid/{url}",
            }
            for text, url in list(texts.items())[number::TEXT_FILES]
            for piece in (passages(text, passage) if passage else [text])
        ]
        files[name] = _compress(_json_lines(documents))
    return files


def passages(text: str, characters: int) -> list[str]:
    """The text cut at line ends into pieces of at least that many characters, except the last."""
    pieces: list[list[str]] = [[]]
    for line in text.split("\n"):
        if sum(map(len, pieces[-1])) >= characters:
            pieces.append([])
        pieces[-1].append(line)
    return ["\n".join(lines) for lines in pieces]


def without_duplicates(pairs: Iterable[Pair], before: Iterable[Pair] = ()) -> list[Pair]:
    """The pairs whose document repeats the words of no earlier one, nor of one of `before`."""
    seen = {skeleton(pair.document) for pair in before}
    kept = []
    for pair in pairs:
        words = skeleton(pair.document)
        if words not in seen:
            seen.add(words)
            kept.append(pair)
    return kept


def split_packages(
    pairs: Iterable[Pair], held_out: Mapping[str, float] = HELD_OUT
) -> dict[str, str]:
    """{package: split}: packages in a seeded order fill test, then validation; the rest train."""
    sizes = Counter(pair.package for pair in pairs)
    total = sizes.total()
    small = [package for package in sizes if sizes[package] <= LARGEST_SHARE * total]
    splits = dict.fromkeys(sizes, "train")
    waiting = iter(sorted(small, key=random_key))
    for split, share in held_out.items():
        filled = 0
        for package in waiting:
            splits[package] = split
            filled += sizes[package]
            if filled >= share * total:
                break
    return splits


def leaked(pairs: list[Pair], texts: list[str]) -> set[str]:
    """Ids of the pairs whose summary or document occurs, word for word, in any of the texts.

    A passage that occurs in a text brings its inner words with it, so one pass over the texts for
    three of those leaves few passages to search for.
    """
    passages = [(p.id, skeleton(passage)) for p in pairs for passage in (p.summary, p.document)]
    inner = {passage: tuple(passage.split()[1:-1][:3]) for _, passage in passages}
    wanted = {words for words in inner.values() if len(words) == 3}
    present: set[tuple[str, ...]] = set()
    everything = [skeleton(text) for text in texts]
    for text in everything:
        words = text.split()
        present.update(wanted.intersection(zip(words, words[1:], words[2:], strict=False)))
    suspects = [
        (name, passage)
        for name, passage in passages
        if len(inner[passage]) < 3 or inner[passage] in present
    ]
    haystack = "\n".join(everything)
    return {name for name, passage in suspects if passage in haystack}


def _json_lines(records: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def _compress(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as file:
        file.write(content)
    return buffer.getvalue()
