"""judge.py, run in this process on an evaluation of 26 summaries, against a server of the test."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from chat_server import Answer

from pipeline.judge import main
from pipeline.scoring.judge_reply import DIMENSIONS

KEY = "sk-very-secret-0123456789"
MODEL = "some/judge-1"
FREE = ("--price_input", "0", "--price_output", "0")


class JudgeCommand:
    """Runs the command on the evaluation in `folder`."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys

    def run(self, url: str, *more: str) -> dict:
        """The result that it writes."""
        self.monkeypatch.setenv("OPENAI_BASE_URL", url)
        before = set(self.results())
        main(["--evaluation", str(self.folder), *FREE, *more])
        (path,) = set(self.results()) - before
        return json.loads(path.read_text())

    def refused(self, url: str, *more: str) -> str:
        """The error, one line of a command that ends with status 2, without the key."""
        with pytest.raises(SystemExit) as stopped:
            self.run(url, *more)
        error = self.capsys.readouterr().err.splitlines()[-1]
        assert stopped.value.code == 2 and error.startswith("error: ")
        assert KEY not in error
        return error

    def results(self) -> list[Path]:
        """The result files in the folder."""
        return list(self.folder.glob("judge-*.json"))

    def replies(self) -> list[dict]:
        """The records of the one file of replies."""
        (path,) = self.folder.glob("judge-*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def number_of(prompt: str) -> int:
    """The index of the summary in a prompt."""
    return int(re.search(r"Summary (\d+),", prompt)[1])


def ratings_of(k: int) -> list[int]:
    """The ratings of summary `k`."""
    return [1 + k % 5, 1 + k // 5 % 5, 5, 1 + k % 2]


def rating(number: int, prompt: str) -> Answer:
    """A server's behaviour: a reply with the summary's ratings."""
    values = ratings_of(number_of(prompt))
    lines = (f"{name.title()}: {value}" for name, value in zip(DIMENSIONS, values, strict=True))
    return Answer("\n".join(lines))


def check_means(result: dict) -> None:
    """Assert that the scores are the means of the ratings of all 26 summaries."""
    expected = np.mean([ratings_of(k) for k in range(26)], axis=0)
    assert [result["scores"][name]["value"] for name in DIMENSIONS] == pytest.approx(expected)
