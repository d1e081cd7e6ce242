"""BLANC by its package, run in the environment of requirements-legacy.txt by `blanc.py`.

Reads JSON lines on standard input, first the settings, then `{"document", "summary"}`; answers each
with a line on standard output: first `{"packages": ...}`, then `{"score", "sentences",
"cut_sentences"}`, or `{"error"}` where the package cannot score a pair. It runs in the model folder
so that the model path is `.`: the package treats a path with "albert" in it as another kind.
"""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Without this folder, whose modules shadow packages; the repository after that environment.
sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[2])]

from pipeline.common.sentences import split_sentences

PACKAGES = ("blanc", "transformers", "torch", "numpy")


def scorer(settings: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    """The package's scorer with our sentence splitter; counts of read and truncated sentences."""
    import torch
    from blanc import BlancHelp, BlancTune, blanc

    counts = {"sentences": 0, "cut_sentences": 0}
    truncate = blanc.truncate_sentence_and_summary

    def counting(sent: list[str], summary: list[list[str]], **options: Any) -> Any:
        cut = truncate(sent=sent, summary=summary, **options)
        counts["sentences"] += 1
        counts["cut_sentences"] += sum(map(len, cut)) < len(sent) + sum(map(len, summary))
        return cut

    blanc.truncate_sentence_and_summary = counting
    blanc.sent_tokenize = split_sentences  # NLTK's downloads its data
    options = {
        "gap": settings["gap"],
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "inference_batch_size": settings["batch_size"],
        "show_progress_bar": False,
    }
    if settings["variant"] == "tune":
        return BlancTune(".", random_seed=settings["seed"], **options), counts
    return BlancHelp(".", **options), counts


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print must not mix with the answers

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    model, counts = scorer(json.loads(sys.stdin.readline()))
    answer({"packages": {name: version(name) for name in PACKAGES}})
    for line in sys.stdin:
        pair = json.loads(line)
        counts.update(dict.fromkeys(counts, 0))
        try:
            score = model.eval_once(pair["document"], pair["summary"])
        except Exception as error:  # of this pair only; continue with the next
            answer({"error": f"{type(error).__name__}: {error}"})
        else:
            answer({"score": float(score), **counts})


if __name__ == "__main__":
    main()
