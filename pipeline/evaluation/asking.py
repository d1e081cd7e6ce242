"""Questions to a server of OpenAI's chat protocol: paced, tried again, answers as they come."""

import asyncio
import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlsplit

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
GIVE_UP_AFTER = 3  # questions in a row that found no answer
TOO_MUCH = (400, 413, 422)  # statuses that speak of this question
PASSING = (408, 409, 425, 429)  # statuses that may be others next time, as 500 and more

URL, KEY, MODEL = "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"


class NoAnswer(Exception):
    """A question for which the server had no answer, however often it was asked."""


class Rejected(Exception):
    """A question that the server will not take, such as one that is too long."""


@dataclass(frozen=True)
class Server:
    """Where to ask. The key is shown nowhere, and cut out of what the server says."""

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
        """A server's or a library's words on one line, short, without the key."""
        words = " ".join(str(message).split())
        if len(self.key) >= 8:  # shorter ones are words such as "none"
            words = words.replace(self.key, "(key)")
        return words if len(words) < 300 else words[:300] + " ..."


def server_from_environment() -> Server:
    """The server of OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL.

    Raises ValueError naming a variable that is not set or cannot be.
    """
    values = {name: os.environ.get(name, "") for name in (URL, KEY, MODEL)}
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} not set in the environment: the server's address (such as "
            "http://localhost:8000/v1), its key (any word where it needs none), the model's name"
        )
    try:
        usable = (
            urlsplit(values[URL]).scheme in ("http", "https") and urlsplit(values[URL]).hostname
        )
        urlsplit(values[URL]).port  # noqa: B018 - raises on one that is none
    except ValueError:
        usable = None
    if not usable:
        raise ValueError(f"{URL} is not an address such as http://localhost:8000/v1")
    if not (values[KEY].isascii() and values[KEY].isprintable() and " " not in values[KEY]):
        raise ValueError(f"{KEY} holds white space or characters that no key has")
    return Server(values[URL], values[MODEL], values[KEY])


@dataclass(frozen=True)
class Pace:
    """How hard to press: questions at once, a minute (0: any), seconds to wait, times to try."""

    concurrency: int = 8
    per_minute: int = 0
    timeout_s: float = 120.0
    tries: int = 6


@dataclass(frozen=True)
class Answer:
    """What the model said, why it stopped, and the tokens it read and wrote, if the server says."""

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


class Client:
    """Asks one server."""

    def __init__(self, server: Server, request: dict[str, Any], pace: Pace) -> None:
        self.server, self.request, self.pace = server, request, pace
        self._errors = openai_package()
        self._client = self._errors.AsyncOpenAI(
            base_url=server.base_url, api_key=server.key, max_retries=0, timeout=pace.timeout_s
        )
        self._next = 0.0  # the time before which no request goes out

    async def ask(self, prompt: str) -> Answer:
        """One answer; raises Rejected or NoAnswer, and ValueError where asking is of no use."""
        wait = FIRST_WAIT_S
        for attempt in range(1, self.pace.tries + 1):
            await self._turn()
            try:
                return _read(await self._send(prompt))
            except self._errors.APITimeoutError:
                problem = f"no answer in {self.pace.timeout_s:g} s"
            except self._errors.APIConnectionError as error:
                problem = f"no connection ({self.server.clean(error.__cause__ or error)})"
            except self._errors.APIStatusError as error:
                problem = f"status {error.status_code}: {self.server.clean(error.message)}"
                if error.status_code in TOO_MUCH:
                    raise Rejected(problem) from None
                if error.status_code not in PASSING and error.status_code < 500:
                    self._turned_away(problem)
                wait = max(wait, _retry_after(error.response.headers))
                if error.status_code == 429:
                    self._next = max(self._next, _now() + wait)  # for everyone
            except _NotTheProtocol as error:
                problem = f"not the protocol: {self.server.clean(error)}"
            if attempt < self.pace.tries:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT_S)
        raise NoAnswer(problem)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _send(self, prompt: str) -> str:
        reply = await self._client.chat.completions.with_raw_response.create(
            model=self.server.model,
            messages=[{"role": "user", "content": prompt}],
            extra_body=self.request,
        )
        return reply.text

    async def _turn(self) -> None:
        """Wait for this request's turn; turns are a minute's share apart."""
        at = max(_now(), self._next)
        self._next = at + (60 / self.pace.per_minute if self.pace.per_minute else 0)
        await asyncio.sleep(at - _now())

    def _turned_away(self, problem: str) -> NoReturn:
        raise ValueError(
            f"{self.server.name} turns us away, {problem}; see {URL}, {KEY} and {MODEL}"
        ) from None


async def ask_all(
    client: Client,
    prompts: Mapping[int, str],
    take: Callable[[int, Answer | Rejected], None],
    enough: Callable[[], bool],
) -> dict[int, str]:
    """Ask every prompt; `take` gets each answer as it comes; returns what stayed without one, why.

    The shortest goes first and alone, so that a wrong address, key or setting costs one request.
    Ends early, other questions unasked and not among those returned, once `enough` says so or
    several questions in a row found no answer. Raises ValueError when the server turns us away or
    rejects the first.
    """
    waiting = iter(sorted(prompts, key=lambda index: len(prompts[index])))
    unanswered: dict[int, str] = {}
    in_a_row = 0

    async def one(index: int) -> Answer | Rejected | None:
        nonlocal in_a_row
        try:
            answer: Answer | Rejected = await client.ask(prompts[index])
        except Rejected as rejected:
            answer = rejected
        except NoAnswer as problem:
            unanswered[index] = str(problem)
            in_a_row += 1
            return None
        in_a_row = 0
        return answer

    async def work() -> None:
        for index in waiting:
            answer = await one(index)
            if answer is not None:
                take(index, answer)
            if enough() or in_a_row >= GIVE_UP_AFTER:
                return

    try:
        first = next(waiting, None)
        if first is None:
            return {}
        answer = await one(first)
        if isinstance(answer, Rejected):
            raise ValueError(f"{client.server.name} rejects the shortest question: {answer}")
        if answer is None:
            return unanswered
        take(first, answer)
        if not enough():
            await asyncio.gather(*(work() for _ in range(client.pace.concurrency)))
    finally:
        await client.close()
    return unanswered


class _NotTheProtocol(Exception):
    pass


def _read(body: str) -> Answer:
    """A chat completion's first choice; anything else is not the protocol."""
    try:
        completion = json.loads(body)
        choice = completion["choices"][0]
        message, finish_reason = choice["message"], str(choice.get("finish_reason"))
        text, refusal = message.get("content") or "", message.get("refusal") or ""
        usage = completion.get("usage") or {}
        tokens = (usage["prompt_tokens"], usage["completion_tokens"]) if usage else None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _NotTheProtocol(body[:200]) from None
    if not all(isinstance(words, str) for words in (text, refusal)):
        raise _NotTheProtocol(body[:200])
    return Answer(text, refusal, finish_reason, tokens)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks us to wait, at most LONGEST_WAIT_S; 0 where it does not say."""
    try:
        return min(max(float(headers.get("retry-after", "0")), 0.0), LONGEST_WAIT_S)
    except ValueError:  # a date
        return 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()
