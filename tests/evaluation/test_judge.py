import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from chat_server import GOOD, Answer, ChatServer, dropped, failing, late, plain
from finished_evaluation import edit, finish

from pipeline.evaluation import asking
from pipeline.evaluation.judge import DIMENSIONS, fill, first_words, parse_reply
from pipeline.evaluation.run import Examples
from pipeline.judge import main
from pipeline.shards import Dataset

pytest.importorskip("openai", reason="openai: requirements-extras.txt")

KEY = "sk-very-secret-0123456789"
CLI = Path(__file__).resolve().parents[2] / "pipeline" / "judge.py"
FREE = ("--price_input", "0", "--price_output", "0")


@pytest.fixture(scope="module")
def template(checkpoint, dataset_folder, tmp_path_factory) -> Path:
    folder = finish(checkpoint, dataset_folder, tmp_path_factory.mktemp("evaluation") / "out")
    edit(folder, {k: {"prediction": f"Summary {k}, {{document}} and so on."} for k in range(26)})
    return folder


@pytest.fixture
def evaluation(template, tmp_path) -> Path:
    return shutil.copytree(template, tmp_path / "out")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_MODEL", "some/judge-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(asking, "FIRST_WAIT_S", 0.01)


def judge(evaluation: Path, url: str, *more: str, monkeypatch) -> dict:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    before = set(evaluation.glob("judge-*.json"))
    main(["--evaluation", str(evaluation), *FREE, *more])
    (path,) = set(evaluation.glob("judge-*.json")) - before
    return json.loads(path.read_text())


def refused(evaluation: Path, url: str, *more: str, monkeypatch, capsys) -> str:
    with pytest.raises(SystemExit) as stopped:
        judge(evaluation, url, *more, monkeypatch=monkeypatch)
    error = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2 and error.startswith("error: ")
    assert KEY not in error
    return error


def replies(evaluation: Path) -> list[dict]:
    (path,) = evaluation.glob("judge-*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def number_of(prompt: str) -> int:
    """Which summary a prompt asks about."""
    return int(re.search(r"Summary (\d+),", prompt)[1])


def ratings_of(k: int) -> list[int]:
    return [1 + k % 5, 1 + k // 5 % 5, 5, 1 + k % 2]


def rating(number: int, prompt: str) -> Answer:
    values = ratings_of(number_of(prompt))
    lines = (f"{name.title()}: {value}" for name, value in zip(DIMENSIONS, values, strict=True))
    return Answer("\n".join(lines))


def test_means_are_those_of_the_ratings_and_every_example_is_asked_once(
    evaluation, dataset_folder, monkeypatch
):
    with ChatServer(rating) as server:
        result = judge(evaluation, server.url, monkeypatch=monkeypatch)
    assert sorted(map(number_of, server.prompts)) == list(range(26))
    expected = np.mean([ratings_of(k) for k in range(26)], axis=0)
    assert [result["scores"][name]["value"] for name in DIMENSIONS] == pytest.approx(expected)
    assert result["scores"]["fluency"] == {"value": 5, "low": 5, "high": 5}
    assert (
        result["scores"]["relevance"]["low"] < expected[0] < result["scores"]["relevance"]["high"]
    )
    examples = Examples(Dataset(dataset_folder))
    for prompt in server.prompts:
        document = examples[number_of(prompt)].document
        assert (
            f"Article:\n{document}\n\nSummary:\nSummary {number_of(prompt)}, {{document}}" in prompt
        )
    assert server.bodies[0]["model"] == "some/judge-1"
    assert server.bodies[0]["temperature"] == 0 and server.bodies[0]["max_tokens"] == 64
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert result["asked"] == result["examples"] == 26
    assert result["tokens"] == {"read": 2600, "written": 520}
    settings = result["settings"]
    assert settings["model"] == "some/judge-1" and settings["seed"] == 0
    assert settings["server"] == server.url and len(settings["prompt_sha256"]) == 64
    for path in evaluation.iterdir():
        assert KEY.encode() not in path.read_bytes(), path


def test_the_sample_is_drawn_with_a_seed(evaluation, monkeypatch):
    def asked(seed: str) -> set[int]:
        with ChatServer(rating) as server:
            judge(evaluation, server.url, "--samples", "9", "--seed", seed, monkeypatch=monkeypatch)
        return set(map(number_of, server.prompts))

    first, second = asked("0"), asked("1")
    assert len(first) == len(second) == 9 and first != second
    for path in evaluation.glob("judge-*"):
        path.unlink()
    assert asked("0") == first


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "relevance: 4, consistency: 5; fluency: 3\n\ncoherence: 2.",
        "Coherence:2 Fluency : 3 Relevance:  4 Consistency: 5\n",
    ],
)
def test_four_labelled_numbers_are_a_reply(text):
    assert parse_reply(text) == {"relevance": 4, "consistency": 5, "fluency": 3, "coherence": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4 5 3 2",
        GOOD.replace("4", "6"),
        GOOD.replace("4", "0"),
        GOOD.replace("4", "4.5"),
        GOOD.replace("4", "4/5"),
        GOOD.replace("4", "٤"),
        GOOD.replace("4", "four"),
        GOOD.replace("Fluency: 3\n", ""),
        GOOD.replace("Fluency", "Relevance"),
        GOOD + "\nRelevance: 4",
        "The summary is good.\n" + GOOD,
        GOOD + "\nI would add that it is short.",
        GOOD.replace("Relevance", "Irrelevance"),
        GOOD.replace("\n", ""),
    ],
)
def test_anything_else_is_none(text):
    assert parse_reply(text) is None


def test_texts_that_look_like_places_stand_for_themselves():
    assert fill("{summary}|{document}", "a {summary} \\1", "b {document}") == (
        "b {document}|a {summary} \\1"
    )
    assert first_words(" one  two\nthree", 2) == " one  two"
    assert first_words("one two", 3) == first_words("one two", 0) == "one two"


def test_refusals_and_malformed_replies_are_counted_and_kept(evaluation, monkeypatch, capsys):
    odd = {
        1: Answer("I'm sorry, but I cannot rate this."),
        2: Answer("", refusal="No."),
        3: Answer("", finish_reason="content_filter"),
        4: Answer(GOOD, finish_reason="length"),
        5: Answer("It is a fine summary: 5 of 5."),
        6: failing(400, f"This model's maximum context length is 16 tokens {KEY}"),
        7: Answer(None),
    }
    edit(evaluation, {6: {"prediction": "Summary 6, " + "on and " * 500}})
    with ChatServer(lambda _, prompt: odd.get(number_of(prompt), Answer())) as server:
        result = judge(evaluation, server.url, monkeypatch=monkeypatch)
        assert len(server.prompts) == 26
    assert result["examples"] == 19 and result["asked"] == 26
    assert (result["refused"], result["malformed"], result["rejected"]) == (3, 3, 1)
    kept = {record["index"]: record for record in replies(evaluation)}
    assert len(kept) == 26 and kept[5]["reply"] == "It is a fine summary: 5 of 5."
    assert kept[2]["reply"] == "No." and kept[6]["outcome"] == "rejected"
    assert "maximum context length" in kept[6]["reply"] and KEY not in kept[6]["reply"]
    printed = capsys.readouterr().out
    assert "19 of 26 rated" in printed and "3 malformed\n3 refused\n1 rejected" in printed


def test_what_passes_is_tried_again(evaluation, monkeypatch):
    trouble = [
        failing(429, retry_after="0.1"),
        failing(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"),
        failing(500),
        failing(503, "overloaded"),
        plain(b"<html>It works!</html>"),
        plain(b'{"choices": []}', "application/json"),
        plain(b'{"choices": [{"mess', "application/json"),
        plain(b'{"choices": [{"message": {"content": 5}}]}', "application/json"),
        dropped(),
        late(3),
    ]
    seen: dict[int, int] = {}

    def behave(_: int, prompt: str) -> Answer:
        k = number_of(prompt)
        seen[k] = seen.get(k, 0) + 1
        return trouble[k] if k < len(trouble) and seen[k] == 1 else rating(0, prompt)

    with ChatServer(behave) as server:
        more = ("--timeout", "2", "--concurrency", "4")
        result = judge(evaluation, server.url, *more, monkeypatch=monkeypatch)
    expected = np.mean([ratings_of(k) for k in range(26)], axis=0)
    assert [result["scores"][name]["value"] for name in DIMENSIONS] == pytest.approx(expected)
    assert seen == {k: 2 if k < len(trouble) else 1 for k in range(26)}


def test_a_server_that_dies_leaves_what_it_said_and_the_rest_is_asked_later(
    evaluation, monkeypatch, capsys
):
    def behave(number: int, prompt: str) -> Answer:
        return rating(number, prompt) if number < 8 else failing(502, "gone")

    with ChatServer(behave) as server:
        port = server.url
        error = refused(
            evaluation,
            server.url,
            *("--concurrency", "2", "--tries", "2"),
            monkeypatch=monkeypatch,
            capsys=capsys,
        )
    assert "18 of 26 examples have no reply (status 502: " in error
    assert "8 are kept in" in error and "run again to go on" in error
    first = replies(evaluation)
    # Then it is not there at all.
    error = refused(evaluation, port, "--tries", "2", monkeypatch=monkeypatch, capsys=capsys)
    assert "18 of 26 examples have no reply (no connection (" in error
    assert replies(evaluation) == first
    assert list(evaluation.glob("judge-*.json")) == []
    with ChatServer(rating) as server:
        # Another port is another server to the settings: the first one's is given back.
        monkeypatch.setattr(asking.Server, "name", port)
        result = judge(evaluation, server.url, monkeypatch=monkeypatch)
    assert len(server.prompts) == 18
    assert not {record["index"] for record in first} & set(map(number_of, server.prompts))
    expected = np.mean([ratings_of(k) for k in range(26)], axis=0)
    assert [result["scores"][name]["value"] for name in DIMENSIONS] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (failing(401, f"Incorrect API key provided: {KEY}"), "status 401: "),
        (failing(404, "The model does not exist"), "status 404: "),
        (failing(400, "max_tokens is not supported"), "rejects the shortest question: status 400"),
    ],
)
def test_a_server_that_turns_us_away_is_asked_once(evaluation, answer, said, monkeypatch, capsys):
    with ChatServer(lambda number, prompt: answer) as server:
        error = refused(evaluation, server.url, monkeypatch=monkeypatch, capsys=capsys)
    assert said in error and len(server.prompts) == 1
    assert list(evaluation.glob("judge-*")) == []


def test_a_key_withdrawn_in_the_middle_ends_it_and_replies_are_kept(
    evaluation, monkeypatch, capsys
):
    def behave(number: int, prompt: str) -> Answer:
        return rating(number, prompt) if number < 6 else failing(401, f"{KEY} is no more")

    with ChatServer(behave) as server:
        error = refused(
            evaluation, server.url, "--concurrency", "3", monkeypatch=monkeypatch, capsys=capsys
        )
    assert "turns us away, status 401: " in error and "(key) is no more" in error
    assert len(replies(evaluation)) >= 4


@pytest.mark.parametrize("body", [b"<html>It works!</html>", b"[]", b'{"choices": null}'])
def test_nonsense_is_said_to_be_nonsense(evaluation, body, monkeypatch, capsys):
    with ChatServer(lambda number, prompt: plain(body, "application/json")) as server:
        error = refused(
            evaluation, server.url, "--tries", "2", monkeypatch=monkeypatch, capsys=capsys
        )
    assert f"26 of 26 examples have no reply (not the protocol: {body.decode()})" in error
    assert len(server.prompts) == 2


def test_a_model_that_never_rates_gives_no_result(evaluation, monkeypatch, capsys):
    with ChatServer(lambda number, prompt: Answer("Thank you!")) as server:
        error = refused(evaluation, server.url, monkeypatch=monkeypatch, capsys=capsys)
    assert (
        "none of 26 replies holds the four ratings (26 malformed), the first is 'Thank you!'"
        in (error)
    )
    assert len(replies(evaluation)) == 26 and list(evaluation.glob("judge-*.json")) == []


def test_nothing_is_spent_without_consent(evaluation, monkeypatch, capsys):
    prices = ("--price_input", "1000", "--price_output", "2000")

    def behave(number: int, prompt: str) -> Answer:  # it counts ten times what we expect
        answer = rating(number, prompt)
        answer.body = answer.body.replace(b'"prompt_tokens": 100', b'"prompt_tokens": 9000')
        return answer

    with ChatServer(behave) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        main(["--evaluation", str(evaluation), *prices, "--dry_run"])
        line = capsys.readouterr().out
        tokens, cost = re.search(r"about ([\d,]+) tokens.* cost about ([\d.]+)", line).groups()
        expected = int(tokens.replace(",", "")) * 1000 / 1e6 + 26 * 64 * 2000 / 1e6
        assert float(cost) == pytest.approx(expected, abs=0.01)
        assert "at most 1,664 to write" in line
        arguments = {"monkeypatch": monkeypatch, "capsys": capsys}
        error = refused(evaluation, server.url, *prices, **arguments)
        agreed = re.search(r"--max_cost ([\d.]+)", error)[1]
        assert float(agreed) == pytest.approx(expected, abs=0.011)
        assert server.prompts == [] and list(evaluation.glob("judge-*")) == []
        more = (*prices, "--max_cost", agreed, "--concurrency", "1")
        error = refused(evaluation, server.url, *more, **arguments)
    # Each reply costs 9.04 of what was agreed to.
    assert len(server.prompts) == float(agreed) // 9.04 + 1
    assert "is spent); " in error and len(replies(evaluation)) == len(server.prompts)


def test_questions_go_out_together_but_no_faster_than_allowed(evaluation, monkeypatch):
    three = threading.Barrier(3)

    def behave(number: int, prompt: str) -> Answer:
        if 1 <= number <= 24:  # the first is alone, and the last two too few
            three.wait(timeout=60)
        return Answer()

    with ChatServer(behave) as server:
        judge(evaluation, server.url, "--concurrency", "3", monkeypatch=monkeypatch)
        assert server.most_at_once == 3
    with ChatServer() as server:
        more = ("--per_minute", "600", "--samples", "6")
        judge(evaluation, server.url, *more, monkeypatch=monkeypatch)
    assert server.times[-1] - server.times[0] > 0.4  # five gaps of a tenth of a second


def test_long_documents_are_cut_when_asked_to_and_it_is_said(evaluation, monkeypatch):
    prompts = []
    for words in ("0", "5"):
        with ChatServer() as server:
            result = judge(
                evaluation, server.url, "--document_words", words, monkeypatch=monkeypatch
            )
            prompts.append(sum(map(len, server.prompts)))
    assert prompts[1] < prompts[0] and result["truncated"] == {"limit": 5, "documents": 1.0}


def test_what_cannot_be_asked_is_said_in_one_line(evaluation, monkeypatch, capsys, tmp_path):
    arguments = {"monkeypatch": monkeypatch, "capsys": capsys}
    url = "http://127.0.0.1:9/v1"
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"{document} {summary} caf\xe9")
    assert "prompt.txt is not a text in UTF-8" in refused(
        evaluation, url, "--prompt", str(prompt), **arguments
    )
    prompt.write_text("{document} {document}")
    assert "{document} 2 times" in refused(evaluation, url, "--prompt", str(prompt), **arguments)
    assert "expected an amount" in refused(evaluation, url, "--max_cost", "nan", **arguments)
    assert "no predictions-permuted.jsonl" in refused(
        evaluation, url, "--system", "permuted", **arguments
    )
    assert "is not an address" in refused(evaluation, "localhost:8000", **arguments)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-two\nlines")
    with pytest.raises(SystemExit):
        judge(evaluation, url, monkeypatch=monkeypatch)
    error = capsys.readouterr().err
    assert "OPENAI_API_KEY holds white space" in error and "lines" not in error
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_MODEL")
    assert "OPENAI_API_KEY, OPENAI_MODEL not set" in refused(evaluation, url, **arguments)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", "judge")
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "pip install -r requirements-extras.txt" in refused(evaluation, url, **arguments)
    assert list(evaluation.glob("judge-*")) == []


@pytest.mark.slow
def test_killed_in_the_middle_it_asks_only_the_rest(evaluation, monkeypatch):
    enough = threading.Event()

    def behave(number: int, prompt: str) -> Answer:
        if number == 9:
            enough.set()
        if number >= 9 and not resumed:
            time.sleep(60)
        return rating(number, prompt)

    resumed: list[bool] = []
    command = [sys.executable, CLI, "--evaluation", evaluation, *FREE, "--concurrency", "2"]
    with ChatServer(behave) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert enough.wait(120)
            busy = subprocess.run(command, capture_output=True, text=True, timeout=120)
            process.kill()
        assert busy.returncode == 2 and "another process is at it" in busy.stderr
        (path,) = evaluation.glob("judge-*.jsonl")
        kept = {record["index"] for record in replies(evaluation)}
        assert len(kept) in (8, 9)  # the tenth request came in; the ninth's reply may be on its way
        path.write_bytes(path.read_bytes() + b'{"index": 25, "out')
        resumed.append(True)
        asked = len(server.prompts)
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        later = set(map(number_of, server.prompts[asked:]))
    assert later == set(range(26)) - kept and len(server.prompts) - asked == 26 - len(kept)
    (result,) = evaluation.glob("judge-*.json")
    scores = json.loads(result.read_text())["scores"]
    expected = np.mean([ratings_of(k) for k in range(26)], axis=0)
    assert [scores[name]["value"] for name in DIMENSIONS] == pytest.approx(expected)
    assert (
        len({record["index"] for record in replies(evaluation)}) == len(replies(evaluation)) == 26
    )
