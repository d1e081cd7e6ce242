"""Small corpora made on the spot."""

import gzip
import json
import random
from pathlib import Path

WORDS = (
    "the river runs past an old stone mill where three children watch grey herons fish until "
    "evening light turns every window gold and someone calls them home for soup bread cheese"
).split()


def document(rng: random.Random, sentences: int) -> str:
    """A text of that many sentences, some at the end of a line."""
    made = [" ".join(rng.choices(WORDS, k=rng.randint(4, 14))) + "." for _ in range(sentences)]
    return "".join(s.capitalize() + rng.choice([" ", "\n"]) for s in made)


def c4_lines(seed: int, count: int) -> list[str]:
    """`count` C4 records as lines; a document has 1 to 30 sentences."""
    rng = random.Random(seed)
    return [
        json.dumps(
            {
                "text": document(rng, rng.randint(1, 30)),
                "timestamp": "2019-04-25T12:57:54Z",
                "url": f"https://example.org/{seed}/{i}",
            }
        )
        for i in range(count)
    ]


def write_lines(path: Path, lines: list[str]) -> Path:
    """Write lines, gzipped where the name says so."""
    content = "".join(line + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder: {relative name: content}."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
