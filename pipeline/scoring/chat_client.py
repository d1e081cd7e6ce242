"""Questions to a server of OpenAI's chat protocol, through its client, which retries."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

GIVE_UP_AFTER = 3  # questions in a row without an answer
ABOUT_THE_QUESTION = (400, 413, 422)  # statuses that another question may not get
ABOUT_THE_MOMENT = (408, 409, 429)  # statuses that the client retries, as it does 500 and above

URL, KEY, MODEL = "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"


class NoAnswer(Exception):
    """A question that the server did not answer, after all retries."""


@dataclass(frozen=True)
class Rejected:
    """The server does not accept a question, for instance because it is too long."""

    reason: str


@dataclass(frozen=True)
class ChatEndpoint:
    """The server and the model. The key is shown nowhere and removed from the server's messages."""

    base_url: str
    model: str
    key: str = field(repr=False)

    @property
    def name(self) -> str:
        """Scheme, host and path of the address, without a password or a query."""
        parts = urlsplit(self.base_url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"

    def clean(self, message: object) -> str:
        """A message of the server or of a library: one line, shortened, without the key."""
        words = " ".join(str(message).split())
        if len(self.key) >= 8:  # shorter ones are words such as "none"
            words = words.replace(self.key, "(key)")
        return words if len(words) < 300 else words[:300] + " ..."


def endpoint_from_environment() -> ChatEndpoint:
    """The endpoint given by OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL.

    Raises ValueError naming a variable that is unset or invalid.
    """
    values = {name: os.environ.get(name, "") for name in (URL, KEY, MODEL)}
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} not set in the environment: the server's address (such as "
            "http://localhost:8000/v1), its key (any word where it needs none), the model's name"
        )
    try:
        parts = urlsplit(values[URL])
        valid = parts.scheme in ("http", "https") and parts.hostname
        parts.port  # noqa: B018 - raises where it is not a number
    except ValueError:
        valid = None
    if not valid:
        raise ValueError(f"{URL} is not an address such as http://localhost:8000/v1")
    if not (values[KEY].isascii() and values[KEY].isprintable() and " " not in values[KEY]):
        raise ValueError(f"{KEY} holds white space or characters that a key cannot have")
    return ChatEndpoint(values[URL], values[MODEL], values[KEY])


@dataclass(frozen=True)
class Pace:
    """Concurrent questions, requests per minute (0: no limit), timeout in seconds, tries."""

    concurrency: int = 8
    per_minute: int = 0
    timeout_s: float = 120.0
    tries: int = 6


@dataclass(frozen=True)
class Answer:
    """The model's reply, why it stopped, and the tokens read and written, if the server counts."""

    text: str
    refusal: str
    finish_reason: str
    tokens: tuple[int, int] | None


def openai_package() -> Any:
    """The client's package. Raises ValueError where it is not installed."""
    try:
        import openai
    except ImportError:
        raise ValueError("the judge needs openai; pip install -r requirements-extras.txt") from None
    return openai


class ChatClient:
    """Asks one endpoint; the openai client retries, with its own backoff and Retry-After."""

    def __init__(self, endpoint: ChatEndpoint, request: dict[str, Any], pace: Pace) -> None:
        self.endpoint, self.request, self.pace = endpoint, request, pace
        self._openai = openai_package()
        self._client = self._openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.key,
            max_retries=pace.tries - 1,
            timeout=pace.timeout_s,
            http_client=self._openai.DefaultAsyncHttpxClient(
                event_hooks={"request": [self._wait_for_turn]}
            ),
        )
        self._next_request = 0.0  # on the event loop's clock

    async def ask(self, prompt: str) -> Answer | Rejected:
        """One answer. Raises NoAnswer, and ValueError where the server refuses all requests."""
        clean = self.endpoint.clean
        try:
            reply = await self._client.chat.completions.with_raw_response.create(
                model=self.endpoint.model,
                messages=[{"role": "user", "content": prompt}],
                extra_body=self.request,
            )
        except self._openai.APITimeoutError:
            raise NoAnswer(f"no answer in {self.pace.timeout_s:g} s") from None
        except self._openai.APIConnectionError as error:
            raise NoAnswer(f"no connection ({clean(error.__cause__ or error)})") from None
        except self._openai.APIStatusError as error:
            problem = f"status {error.status_code}: {clean(error.message)}"
            if error.status_code in ABOUT_THE_QUESTION:
                return Rejected(problem)
            if error.status_code in ABOUT_THE_MOMENT or error.status_code >= 500:
                raise NoAnswer(problem) from None
            raise ValueError(
                f"{self.endpoint.name} refuses requests, {problem}; check {URL}, {KEY} and {MODEL}"
            ) from None
        answer = _read(reply.text)
        if answer is None:
            raise NoAnswer(f"not the chat protocol: {clean(reply.text[:200])}")
        return answer

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _wait_for_turn(self, _: object) -> None:
        """Space requests, retries included, evenly over a minute."""
        if self.pace.per_minute:
            now = asyncio.get_running_loop().time()
            turn = max(now, self._next_request)
            self._next_request = turn + 60 / self.pace.per_minute
            await asyncio.sleep(turn - now)


async def ask_all(
    client: ChatClient,
    prompts: Mapping[int, str],
    take: Callable[[int, Answer | Rejected], None],
    enough: Callable[[], bool],
) -> dict[int, str]:
    """Ask every prompt; `take` gets each answer as it arrives. Returns why others have none.

    The shortest goes first and alone, so that a wrong address, key or setting costs one request.
    Stops early, the remaining questions unasked, once `enough` returns True or several questions
    in a row are unanswered. Raises ValueError when the server refuses requests or rejects the
    shortest question.
    """
    unanswered: dict[int, str] = {}
    in_a_row = 0

    async def work(questions: Iterator[int]) -> None:
        nonlocal in_a_row
        for index in questions:
            try:
                answer = await client.ask(prompts[index])
            except NoAnswer as problem:
                unanswered[index] = str(problem)
                in_a_row += 1
            else:
                if index == shortest and isinstance(answer, Rejected):
                    raise ValueError(
                        f"{client.endpoint.name} rejects the shortest question: {answer.reason}"
                    )
                take(index, answer)
                in_a_row = 0
            if enough() or in_a_row >= GIVE_UP_AFTER:
                return

    if not prompts:
        return unanswered
    try:
        shortest, *others = sorted(prompts, key=lambda index: len(prompts[index]))
        await work(iter([shortest]))
        if not unanswered and not enough():
            waiting = iter(others)
            await asyncio.gather(*(work(waiting) for _ in range(client.pace.concurrency)))
    finally:
        await client.close()
    return unanswered


def _read(body: str) -> Answer | None:
    """The first choice of a chat completion; None for anything else."""
    try:
        completion = json.loads(body)
        choice = completion["choices"][0]
        message, finish_reason = choice["message"], str(choice.get("finish_reason"))
        text, refusal = message.get("content") or "", message.get("refusal") or ""
        usage = completion.get("usage") or {}
        tokens = (usage["prompt_tokens"], usage["completion_tokens"]) if usage else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not (isinstance(text, str) and isinstance(refusal, str)):
        return None
    return Answer(text, refusal, finish_reason, tokens)
