"""The judge's questions to a server: retries, pace, refusals, and runs that resume."""

import threading

import pytest
from chat_server import Answer, ChatServer, dropped, failing, late, plain
from judge_command import KEY, check_means, number_of, rating

from pipeline.scoring import chat_client

pytest.importorskip("openai", reason="openai: requirements-extras.txt")
pytestmark = pytest.mark.slow  # the openai client waits before it asks again


def test_what_may_pass_is_retried(judge):
    trouble = [
        failing(429, retry_after="0.1"),
        failing(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"),
        failing(500),
        failing(503, "overloaded"),
        dropped(),
        late(3),
    ]
    seen: dict[int, int] = {}

    def behave(_: int, prompt: str) -> Answer:
        k = number_of(prompt)
        seen[k] = seen.get(k, 0) + 1
        return trouble[k] if k < len(trouble) and seen[k] == 1 else rating(0, prompt)

    with ChatServer(behave) as server:
        check_means(judge.run(server.url, "--timeout", "2", "--concurrency", "4"))
    assert seen == {k: 2 if k < len(trouble) else 1 for k in range(26)}


def test_a_question_is_asked_as_often_as_tries_allows(judge):
    with ChatServer(lambda number, prompt: failing(503, retry_after="0.01")) as server:
        error = judge.refused(server.url, "--tries", "3")
    assert "26 of 26 examples have no reply (status 503: " in error
    assert len(server.prompts) == 3
    with ChatServer(lambda number, prompt: late(3)) as server:
        error = judge.refused(server.url, "--tries", "1", "--timeout", "1")
    assert "26 of 26 examples have no reply (no answer in 1 s)" in error
    assert len(server.prompts) == 1


def test_a_server_that_dies_leaves_its_replies_and_the_next_run_asks_the_rest(judge):
    def behave(number: int, prompt: str) -> Answer:
        return rating(number, prompt) if number < 8 else failing(502, "gone", retry_after="0.01")

    with ChatServer(behave) as server:
        url = server.url
        error = judge.refused(url, "--concurrency", "2", "--tries", "2")
    assert "18 of 26 examples have no reply (status 502: " in error
    assert "8 are kept in" in error and "run again to resume" in error
    first = judge.replies()
    # Then it is not there at all.
    error = judge.refused(url, "--tries", "2")
    assert "18 of 26 examples have no reply (no connection (" in error
    assert judge.replies() == first
    assert judge.results() == []
    with ChatServer(rating) as server:
        # Another port would be another server in the settings: it gets the first one's name.
        judge.monkeypatch.setattr(chat_client.ChatEndpoint, "name", url)
        result = judge.run(server.url)
    assert len(server.prompts) == 18
    assert not {record["index"] for record in first} & set(map(number_of, server.prompts))
    check_means(result)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (failing(401, f"Incorrect API key provided: {KEY}"), "refuses requests, status 401: "),
        (failing(404, "The model does not exist"), "refuses requests, status 404: "),
        (failing(400, "max_tokens is not supported"), "rejects the shortest question: status 400"),
    ],
)
def test_a_server_that_refuses_is_asked_once(judge, answer, named):
    with ChatServer(lambda number, prompt: answer) as server:
        error = judge.refused(server.url)
    assert named in error and len(server.prompts) == 1
    assert list(judge.folder.glob("judge-*")) == []


def test_a_key_withdrawn_during_the_run_ends_it_and_replies_are_kept(judge):
    def behave(number: int, prompt: str) -> Answer:
        return rating(number, prompt) if number < 6 else failing(401, f"{KEY} is no more")

    with ChatServer(behave) as server:
        error = judge.refused(server.url, "--concurrency", "3")
    assert "refuses requests, status 401: " in error and "(key) is no more" in error
    assert len(judge.replies()) >= 4


NOT_THE_PROTOCOL = [
    b"<html>It works!</html>",
    b"[]",
    b'{"choices": null}',
    b'{"choices": []}',
    b'{"choices": [{"mess',
    b'{"choices": [{"message": {"content": 5}}]}',
]


@pytest.mark.parametrize("body", NOT_THE_PROTOCOL)
def test_an_answer_that_is_not_the_protocol_is_shown(judge, body):
    with ChatServer(lambda number, prompt: plain(body, "application/json")) as server:
        error = judge.refused(server.url)
    assert f"26 of 26 examples have no reply (not the chat protocol: {body.decode()})" in error
    assert len(server.prompts) == 1


def test_a_question_answered_outside_the_protocol_is_asked_again_by_the_next_run(judge):
    asked: list[int] = []

    def behave(number: int, prompt: str) -> Answer:
        asked.append(number_of(prompt))
        broken = asked.count(3) == 1 and asked[-1] == 3
        return plain(NOT_THE_PROTOCOL[0]) if broken else rating(number, prompt)

    with ChatServer(behave) as server:
        error = judge.refused(server.url)
        assert "1 of 26 examples have no reply (not the chat protocol: <html>" in error
        assert len(judge.replies()) == 25
        check_means(judge.run(server.url))
    assert asked[26:] == [3]


def test_questions_go_out_together_but_no_faster_than_allowed(judge):
    three = threading.Barrier(3)

    def behave(number: int, prompt: str) -> Answer:
        if 1 <= number <= 24:  # the first goes alone, and the last two are too few
            three.wait(timeout=60)
        return Answer()

    with ChatServer(behave) as server:
        judge.run(server.url, "--concurrency", "3")
        assert server.most_at_once == 3
    with ChatServer() as server:
        judge.run(server.url, "--per_minute", "600", "--samples", "6")
    assert server.times[-1] - server.times[0] > 0.4  # five gaps of a tenth of a second


def test_the_pace_counts_retries(judge, monkeypatch):
    turns, wait = [], chat_client.ChatClient._wait_for_turn

    async def counting(client, request):
        turns.append(request)
        await wait(client, request)

    monkeypatch.setattr(chat_client.ChatClient, "_wait_for_turn", counting)

    def behave(number: int, prompt: str) -> Answer:
        return failing(429, retry_after="0.01") if number in (0, 3) else rating(number, prompt)

    with ChatServer(behave) as server:
        judge.run(server.url, "--samples", "5")
    assert len(turns) == len(server.prompts) == 7


def test_a_body_that_is_nested_too_deeply_is_no_answer():
    assert chat_client._read('{"choices": ' + "[" * 10**5) is None
