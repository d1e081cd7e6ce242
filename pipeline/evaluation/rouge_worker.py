"""A process that scores: a line of JSON [prediction, references] in, one of its pairs' scores out.

Its argument is 1 with the stemmer, 0 without. It ends with its standard input.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import json

from pipeline.evaluation.rouge import score_pairs


def main(use_stemmer: bool) -> None:
    """Answer every line until there are no more."""
    for line in sys.stdin:
        prediction, references = json.loads(line)
        print(json.dumps(score_pairs(prediction, references, use_stemmer)), flush=True)


if __name__ == "__main__":
    main(use_stemmer=sys.argv[1] == "1")
