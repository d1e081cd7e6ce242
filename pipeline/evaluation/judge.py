"""A large language model as judge: four ratings from 1 to 5 (the paper's protocol, our words)."""

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.evaluation.appended import Appended, fingerprint
from pipeline.evaluation.asking import (
    Answer,
    Client,
    Pace,
    Rejected,
    Server,
    ask_all,
    openai_package,
)
from pipeline.evaluation.bootstrap import intervals
from pipeline.evaluation.finished import Finished, Summary
from pipeline.files import replace_json
from pipeline.progress import Progress

DIMENSIONS = ("relevance", "consistency", "fluency", "coherence")
PROMPT = Path(__file__).with_name("judge_prompt.txt")
REQUEST = {"temperature": 0, "max_tokens": 64}
BYTES_A_TOKEN = 4  # of English, for the estimate

_RATING = rf"(?:{'|'.join(DIMENSIONS)})[ \t]*:[ \t]*[1-5]"
_REPLY = re.compile(rf"\s*{_RATING}(?:[\s,;]+{_RATING}){{3}}\.?\s*", re.IGNORECASE | re.ASCII)
_DECLINES = re.compile(
    r"\s*(?:(?:i['’]?m |i am )?sorry|i apologi[sz]e|i can(?:['’]t|not| not)|i won['’]t"
    r"|(?:i['’]m |i am )?(?:unable|not able) to)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the ratings, beside the server and the summaries."""

    samples: int = 500
    seed: int = 0
    prompt: Path = PROMPT
    document_words: int = 0
    """Words of a document that the judge is shown; 0: all."""
    request: Mapping[str, Any] = field(default_factory=lambda: dict(REQUEST))
    """Sent with every question as it is."""


@dataclass(frozen=True)
class Prices:
    """Of a million tokens, in any currency, and what may be spent at most."""

    input: float
    output: float
    most: float

    def of(self, tokens: tuple[int, int]) -> float:
        """What so many tokens read and written cost."""
        return (tokens[0] * self.input + tokens[1] * self.output) / 1e6


def parse_reply(text: str) -> dict[str, int] | None:
    """The four ratings of a reply that holds them, each once with its label, and nothing else."""
    if not _REPLY.fullmatch(text):
        return None
    found = re.findall(r"([a-z]+)[ \t]*:[ \t]*([1-5])", text.lower())
    ratings = {label: int(value) for label, value in found}
    return {name: ratings[name] for name in DIMENSIONS} if len(ratings) == 4 else None


def read_prompt(path: Path) -> str:
    """A prompt with {document} and {summary}, each once. Raises ValueError on another."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text in UTF-8") from None
    for place in ("{document}", "{summary}"):
        if text.count(place) != 1:
            raise ValueError(f"{path} has {place} {text.count(place)} times, expected once")
    return text


def fill(prompt: str, document: str, summary: str) -> str:
    """The prompt with both texts in their places; braces inside the texts stand for themselves."""
    texts = {"{document}": document, "{summary}": summary}
    return re.sub(r"\{document\}|\{summary\}", lambda match: texts[match.group()], prompt)


def first_words(text: str, count: int) -> str:
    """The text up to its word number `count`, as it stands; 0: all of it."""
    match = re.match(rf"\s*(?:\S+\s+){{{count - 1}}}\S+", text) if count else None
    return match.group() if match else text


def choose(summaries: list[Summary], samples: int, seed: int) -> list[Summary]:
    """So many examples at random, in their order; all where there are no more."""
    if samples >= len(summaries):
        return summaries
    return sorted(random.Random(seed).sample(summaries, samples), key=lambda one: one.index)


class Judge:
    """The questions to put about one system's summaries, what they cost, and their answers.

    Raises ValueError when the prompt, the request or the documents cannot be used.
    """

    def __init__(
        self,
        finished: Finished,
        document: Callable[[int], str],
        server: Server,
        settings: Settings,
        prices: Prices,
    ) -> None:
        self.finished, self.server, self.prices = finished, server, prices
        self.request = dict(settings.request)
        self.longest_reply = _longest_reply(self.request)
        prompt = read_prompt(settings.prompt)
        self.chosen = choose(finished.summaries, settings.samples, settings.seed)
        self.prompts, cut = {}, 0
        for one in self.chosen:
            whole = document(one.index)
            shown = first_words(whole, settings.document_words)
            cut += len(shown.split()) < len(whole.split())
            self.prompts[one.index] = fill(prompt, shown, one.prediction)
        self.truncated = {"limit": settings.document_words, "documents": cut / len(self.chosen)}
        self.settings = {
            "model": server.model,
            "server": server.name,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "request": self.request,
            "samples": settings.samples,
            "seed": settings.seed,
            "document_words": settings.document_words,
        }
        slug = re.sub(r"[^\w.-]+", "-", server.model)[-40:].strip("-.")
        self.name = f"{slug}-{fingerprint(self.settings)}"
        self.stem = finished.folder / f"judge-{finished.system}-{self.name}"
        self.begun = {
            **self.settings,
            "predictions_sha256": finished.sha256,
            "packages": {"openai": openai_package().__version__},
        }

    def replies(self) -> Appended:
        """The replies on disk, `judge-<system>-<model>-<hash>.jsonl` beside the predictions."""
        return Appended(Path(f"{self.stem}.jsonl"), self.begun)

    def estimate(self, done: Mapping[int, Any]) -> tuple[int, int]:
        """Tokens still to be read, about, and to be written, at most."""
        missing = [text for index, text in self.prompts.items() if index not in done]
        read = sum(len(text.encode()) // BYTES_A_TOKEN + 1 for text in missing)
        return read, self.longest_reply * len(missing)

    def spent(self, done: Mapping[int, Any]) -> tuple[int, int]:
        """Tokens read and written so far, as the server counts them, or about."""
        known = [record["tokens"] for record in done.values()]
        return sum(read for read, _ in known), sum(written for _, written in known)

    def cost_line(self, done: Mapping[int, Any]) -> str:
        """What there is to ask and what it will cost, for people."""
        read, written = self.estimate(done)
        return (
            f"{len(self.prompts) - len(done)} of {len(self.prompts)} examples to be judged by "
            f"{self.server.model}: about {read:,} tokens to read, at most {written:,} to write, "
            f"cost about {self.prices.of((read, written)):.2f}, {self._cost(done):.2f} spent before"
        )

    def check_cost(self, done: Mapping[int, Any]) -> None:
        """Raise ValueError when all together would cost more than was agreed to."""
        total = self._cost(done) + self.prices.of(self.estimate(done))
        if total > self.prices.most:
            raise ValueError(
                f"{self.cost_line(done)}; agree with --max_cost {_ceil(total)} or more"
            )

    def run(self, store: Appended, pace: Pace) -> dict[str, Any]:
        """Ask what is missing, keep every reply, and write the result once all are there.

        Raises ValueError when examples are left without a reply, none was rated or the money is
        spent: what was answered is on disk, and the next run goes on from there.
        """
        self.check_cost(store.records)
        bar = Progress("Judge", len(self.prompts), "examples", len(store.records))

        def take(index: int, answer: Answer | Rejected) -> None:
            store.append(self._record(index, answer))
            bar.update(note=_counts(store.records))

        def enough() -> bool:
            return self._cost(store.records) > self.prices.most

        missing = {i: text for i, text in self.prompts.items() if i not in store.records}
        try:
            client = Client(self.server, self.request, pace)
            unanswered = asyncio.run(ask_all(client, missing, take, enough))
        finally:
            bar.close()
        left = len(self.prompts) - len(store.records)
        if left:
            reasons = Counter(unanswered.values()).most_common(1)
            why = reasons[0][0] if reasons else f"{self._cost(store.records):.2f} is spent"
            raise ValueError(
                f"{left} of {len(self.prompts)} examples have no reply ({why}); "
                f"{len(store.records)} are kept in {store.path}, run again to go on"
            )
        result = self._result([store.records[one.index] for one in self.chosen], store.path)
        replace_json(Path(f"{self.stem}.json"), result)
        return result

    def _record(self, index: int, answer: Answer | Rejected) -> dict[str, Any]:
        common = {"index": index, "id": self.finished.summaries[index].id}
        if isinstance(answer, Rejected):
            return {**common, "outcome": "rejected", "reply": str(answer), "tokens": [0, 0]}
        outcome, ratings = judged(answer)
        about = len(self.prompts[index].encode()) // BYTES_A_TOKEN, self.longest_reply
        return {
            **common,
            "outcome": outcome,
            "ratings": ratings,
            "reply": answer.refusal or answer.text,
            "finish_reason": answer.finish_reason,
            "tokens": list(answer.tokens or about),
        }

    def _result(self, records: list[dict[str, Any]], path: Path) -> dict[str, Any]:
        counts = Counter(record["outcome"] for record in records)
        rated = [record["ratings"] for record in records if record["outcome"] == "rated"]
        if not rated:
            raise ValueError(
                f"none of {len(records)} replies holds the four ratings ({_counts_of(counts)}), "
                f"the first is {records[0]['reply'][:100]!r}; they are kept in {path}"
            )
        read, written = self.spent(dict(enumerate(records)))
        return {
            "metric": "judge",
            "column": f"judge {self.name}",
            "system": self.finished.system,
            "examples": len(rated),
            "unit": "1 (worst) to 5 (best); mean over the rated examples",
            "scores": intervals(rated),
            "asked": len(records),
            **{kind: counts[kind] for kind in ("malformed", "refused", "rejected")},
            "truncated": self.truncated,
            "tokens": {"read": read, "written": written},
            "cost": self.prices.of((read, written)),
            "remarks": self.finished.remarks(),
            "settings": self.begun,
            "dataset": self.finished.results["settings"]["dataset"],
        }

    def _cost(self, done: Mapping[int, Any]) -> float:
        return self.prices.of(self.spent(done))


def judged(answer: Answer) -> tuple[str, dict[str, int] | None]:
    """What an answer is: rated (with its ratings), refused or malformed."""
    if answer.refusal or answer.finish_reason == "content_filter":
        return "refused", None
    ratings = parse_reply(answer.text) if answer.finish_reason != "length" else None
    if ratings:
        return "rated", ratings
    return ("refused" if _DECLINES.match(answer.text) else "malformed"), None


def _longest_reply(request: Mapping[str, Any]) -> int:
    """The tokens a reply may have, which the request must state."""
    limits = [request.get(name) for name in ("max_tokens", "max_completion_tokens")]
    stated = [limit for limit in limits if type(limit) is int and limit > 0]
    if not stated:
        raise ValueError(
            f"--request {json.dumps(dict(request))} limits no reply, so its cost has no bound; add "
            "max_tokens or max_completion_tokens"
        )
    return max(stated)


def _ceil(cost: float) -> str:
    """A cost in hundredths, not below it."""
    return f"{-(-cost * 100 // 1) / 100:.2f}"


def _counts(records: Mapping[int, Any]) -> str:
    return _counts_of(Counter(record["outcome"] for record in records.values()))


def _counts_of(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
