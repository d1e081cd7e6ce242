"""The judge: its prompts, its replies, its cost, and a run that is killed."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from chat_server import GOOD, Answer, ChatServer, failing
from finished_evaluation import edit
from judge_command import FREE, KEY, MODEL, check_means, number_of, rating, ratings_of

from pipeline.evaluation.examples import Examples
from pipeline.judge import main
from pipeline.scoring.finished_evaluation import read_finished
from pipeline.scoring.judge import choose, fill, first_words
from pipeline.scoring.judge_reply import parse_reply
from pipeline.shards import Dataset

pytest.importorskip("openai", reason="openai: requirements-extras.txt")

CLI = Path(__file__).resolve().parents[2] / "pipeline" / "judge.py"


def test_means_are_those_of_the_ratings_and_every_example_is_asked_once(judge, dataset_folder):
    with ChatServer(rating) as server:
        result = judge.run(server.url)
    assert sorted(map(number_of, server.prompts)) == list(range(26))
    check_means(result)
    assert result["scores"]["fluency"] == {"value": 5, "low": 5, "high": 5}
    relevance = result["scores"]["relevance"]
    mean = sum(ratings_of(k)[0] for k in range(26)) / 26
    assert relevance["low"] < mean < relevance["high"]
    examples = Examples(Dataset(dataset_folder))
    for prompt in server.prompts:
        k = number_of(prompt)
        article, summary = examples[k].document, f"Summary {k}, {{document}}"
        assert f"Article:\n{article}\n\nSummary:\n{summary}" in prompt
    assert server.bodies[0]["model"] == MODEL
    assert server.bodies[0]["temperature"] == 0 and server.bodies[0]["max_tokens"] == 64
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert result["asked"] == result["examples"] == 26
    assert result["tokens"] == {"read": 2600, "written": 520}
    settings = result["settings"]
    assert settings["model"] == MODEL and settings["seed"] == 0
    assert settings["server"] == server.url and len(settings["prompt_sha256"]) == 64
    for path in judge.folder.iterdir():
        assert KEY.encode() not in path.read_bytes(), path


def test_the_sample_is_drawn_with_a_seed(judge):
    summaries = read_finished(judge.folder, "model").summaries
    first, second = ([one.index for one in choose(summaries, 9, seed)] for seed in (0, 1))
    assert len(set(first)) == len(set(second)) == 9 and first != second
    assert first == sorted(first) == [one.index for one in choose(summaries, 9, 0)]
    assert choose(summaries, 26, 0) == choose(summaries, 500, 1) == summaries
    with ChatServer(rating) as server:
        judge.run(server.url, "--samples", "9", "--seed", "1")
    assert sorted(map(number_of, server.prompts)) == second


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "relevance: 4, consistency: 5; fluency: 3\n\ncoherence: 2.",
        "Coherence:2 Fluency : 3 Relevance:  4 Consistency: 5\n",
        "**Relevance:** 4\n**Consistency**: 5\n**Fluency: 3**\nCoherence: **2**",
        "Relevance: 4/5\nConsistency: 5 / 5\nFluency: 3 out of 5\nCoherence: **2**/5",
        "- Relevance: 4\n* Consistency: 5\n• Fluency: 3\n> Coherence: 2",
        "1. Relevance: 4\r\n2. Consistency: 5\r\n3) Fluency: 3\r\n(4) Coherence: 2",
        "## Relevance: 4\n\n## Consistency: 5\n\n## Fluency: 3\n\n## Coherence: 2",
        "---\nRelevance = 4\nConsistency – 5\nFluency - 3\nCoherence：2\n---",
        '{"relevance": 4, "consistency": 5, "fluency": 3, "coherence": 2}',
        '```json\n{\n "relevance": 4,\n "consistency": 5,\n "fluency": 3,\n "coherence": 2\n}\n```',
        "| Scale | Rating |\n|:--|--:|\n| Relevance | 4 |\n| Consistency | 5 |\n| Fluency | 3 |\n"
        "| Coherence | 2 |",
        f"<think>Relevance: 1? No: 4.</think>\n\n{GOOD}",
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
        GOOD.replace("4", "4/10"),
        GOOD.replace("4", "4/5.5"),
        GOOD.replace("4", "-4"),
        GOOD.replace("4", "4-5"),
        GOOD.replace("4", "4 or 5"),
        GOOD.replace("4", "**4**5"),
        GOOD.replace("4", "~~4~~ 3"),
        f"<think>{GOOD}",
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
def test_any_other_reply_is_malformed(text):
    assert parse_reply(text) is None


def test_braces_inside_the_texts_are_kept():
    assert fill("{summary}|{document}", "a {summary} \\1", "b {document}") == (
        "b {document}|a {summary} \\1"
    )
    assert first_words(" one  two\nthree", 2) == " one  two"
    assert first_words("one two", 3) == first_words("one two", 0) == "one two"


def test_refusals_and_malformed_replies_are_counted_and_kept(judge, capsys):
    odd = {
        1: Answer("I'm sorry, but I cannot rate this."),
        2: Answer("", refusal="No."),
        3: Answer("", finish_reason="content_filter"),
        4: Answer(GOOD, finish_reason="length"),
        5: Answer("It is a fine summary: 5 of 5."),
        6: failing(400, f"This model's maximum context length is 16 tokens {KEY}"),
        7: Answer(None),
    }
    edit(judge.folder, {6: {"prediction": "Summary 6, " + "on and " * 500}})
    with ChatServer(lambda _, prompt: odd.get(number_of(prompt), Answer())) as server:
        result = judge.run(server.url)
        assert len(server.prompts) == 26
    assert result["examples"] == 19 and result["asked"] == 26
    assert (result["refused"], result["malformed"], result["rejected"]) == (3, 3, 1)
    kept = {record["index"]: record for record in judge.replies()}
    assert len(kept) == 26 and kept[5]["reply"] == "It is a fine summary: 5 of 5."
    assert kept[2]["reply"] == "No." and kept[6]["outcome"] == "rejected"
    assert "maximum context length" in kept[6]["reply"] and KEY not in kept[6]["reply"]
    printed = capsys.readouterr().out
    assert "19 of 26 rated" in printed and "3 malformed\n3 refused\n1 rejected" in printed


def test_no_more_is_paid_after_five_malformed_replies_in_a_row(judge):
    with ChatServer(lambda number, prompt: Answer("Thank you!", finish_reason="length")) as server:
        error = judge.refused(server.url, "--concurrency", "1")
        assert len(server.prompts) == 5
        assert (
            "5 replies in a row lack the four ratings, such as 'Thank you!', cut at max_tokens: "
            "stopped, 21 of 26 examples are not asked; 5 replies are kept in "
        ) in error
        assert len(judge.replies()) == 5 and judge.results() == []
        judge.refused(server.url, "--concurrency", "1")
        assert len(server.prompts) == len(judge.replies()) == 10
        server.behave = rating
        result = judge.run(server.url)
    assert len(server.prompts) == 26
    assert (result["examples"], result["malformed"]) == (16, 10)


def test_a_rating_ends_a_row_of_malformed_replies(judge):
    def behave(number: int, prompt: str) -> Answer:
        return rating(number, prompt) if number % 5 == 4 else Answer("Thank you!")

    with ChatServer(behave) as server:
        result = judge.run(server.url, "--concurrency", "1")
    assert (result["examples"], result["malformed"]) == (5, 21)


def test_a_model_that_never_rates_gives_no_result(judge):
    with ChatServer(lambda number, prompt: Answer("Thank you!")) as server:
        error = judge.refused(server.url, "--samples", "4")
    assert "none of 4 replies has the four ratings (4 malformed), the first is 'Thank you!'" in (
        error
    )
    assert len(judge.replies()) == 4 and judge.results() == []


def test_kept_replies_are_parsed_again_at_no_cost(judge, monkeypatch):
    """As after an update that understands more of them."""
    prices = ("--price_input", "1000", "--price_output", "1000", "--samples", "4")
    with ChatServer(lambda number, prompt: Answer(GOOD.replace("4", "4/5"))) as server:
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.scoring.judge.parse_reply", lambda text: None)
            error = judge.refused(server.url, *prices, "--max_cost", "100")
            assert "none of 4 replies" in error
        assert [record["outcome"] for record in judge.replies()] == ["malformed"] * 4
        result = judge.run(server.url, *prices)  # without a budget: nothing is asked
        assert len(server.prompts) == 4
    assert result["examples"] == 4 and result["scores"]["relevance"]["value"] == 4


def test_nothing_is_spent_beyond_max_cost(judge, capsys):
    prices = ("--price_input", "1000", "--price_output", "2000")

    def behave(number: int, prompt: str) -> Answer:  # it counts far more tokens than the estimate
        answer = rating(number, prompt)
        answer.body = answer.body.replace(b'"prompt_tokens": 100', b'"prompt_tokens": 9000')
        return answer

    with ChatServer(behave) as server:
        judge.monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        main(["--evaluation", str(judge.folder), *prices, "--dry_run"])
        line = capsys.readouterr().out
        tokens, cost = re.search(r"about ([\d,]+) tokens.* cost about ([\d.]+)", line).groups()
        expected = int(tokens.replace(",", "")) * 1000 / 1e6 + 26 * 64 * 2000 / 1e6
        assert float(cost) == pytest.approx(expected, abs=0.01)
        assert "at most 1,664 to write" in line
        error = judge.refused(server.url, *prices)
        agreed = re.search(r"--max_cost ([\d.]+)", error)[1]
        assert float(agreed) == pytest.approx(expected, abs=0.011)
        assert server.prompts == [] and list(judge.folder.glob("judge-*")) == []
        more = (*prices, "--max_cost", agreed, "--concurrency", "1")
        error = judge.refused(server.url, *more)
    # Each reply costs 9.04 of the allowed sum.
    assert len(server.prompts) == float(agreed) // 9.04 + 1
    assert "is spent); " in error and len(judge.replies()) == len(server.prompts)


def test_document_words_truncates_and_is_reported(judge):
    prompts = []
    for words in ("0", "5"):
        with ChatServer() as server:
            result = judge.run(server.url, "--document_words", words)
            prompts.append(sum(map(len, server.prompts)))
    assert prompts[1] < prompts[0] and result["truncated"] == {"limit": 5, "documents": 1.0}


def test_an_invalid_prompt_option_or_environment_is_one_line(judge, monkeypatch, capsys, tmp_path):
    url = "http://127.0.0.1:9/v1"
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"{document} {summary} caf\xe9")
    assert "prompt.txt is not UTF-8 text" in judge.refused(url, "--prompt", str(prompt))
    prompt.write_text("{document} {document}")
    assert "{document} 2 times" in judge.refused(url, "--prompt", str(prompt))
    assert "expected an amount" in judge.refused(url, "--max_cost", "nan")
    assert "no predictions-permuted.jsonl" in judge.refused(url, "--system", "permuted")
    assert "is not an address" in judge.refused("localhost:8000")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-two\nlines")
    with pytest.raises(SystemExit):
        judge.run(url)
    error = capsys.readouterr().err
    assert "OPENAI_API_KEY holds white space" in error and "lines" not in error
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_MODEL")
    assert "OPENAI_API_KEY, OPENAI_MODEL not set" in judge.refused(url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", "judge")
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "pip install -r requirements-extras.txt" in judge.refused(url)
    assert list(judge.folder.glob("judge-*")) == []


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_missing_examples(judge, monkeypatch):
    enough = threading.Event()

    def behave(number: int, prompt: str) -> Answer:
        if number == 9:
            enough.set()
        if number >= 9 and not resumed:
            time.sleep(60)
        return rating(number, prompt)

    resumed: list[bool] = []
    command = [sys.executable, CLI, "--evaluation", judge.folder, *FREE, "--concurrency", "2"]
    with ChatServer(behave) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert enough.wait(120)
            assert "another process is using it" in judge.refused(server.url)
            process.kill()
        (path,) = judge.folder.glob("judge-*.jsonl")
        kept = {record["index"] for record in judge.replies()}
        assert len(kept) in (8, 9)  # the tenth request came in; the ninth's reply may be on its way
        path.write_bytes(path.read_bytes() + b'{"index": 25, "out')
        resumed.append(True)
        asked = len(server.prompts)
        result = judge.run(server.url)
        later = list(map(number_of, server.prompts[asked:]))
    assert sorted(later) == sorted(set(range(26)) - kept)
    check_means(result)
    assert sorted(record["index"] for record in judge.replies()) == list(range(26))
