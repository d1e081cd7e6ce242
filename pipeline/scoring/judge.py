"""A large language model as judge: four ratings from 1 to 5 (the paper's protocol, our prompt)."""

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

from pipeline.common.files import replace_json
from pipeline.common.progress import Progress
from pipeline.scoring.bootstrap import intervals
from pipeline.scoring.chat_client import (
    Answer,
    ChatClient,
    ChatEndpoint,
    Pace,
    Rejected,
    ask_all,
    openai_package,
)
from pipeline.scoring.finished_evaluation import EvaluatedSummary, FinishedEvaluation
from pipeline.scoring.jsonl_store import JsonlStore, Record, fingerprint
from pipeline.scoring.judge_reply import parse_reply

PROMPT = Path(__file__).with_name("judge_prompt.txt")
REQUEST = {"temperature": 0, "max_tokens": 64}
BYTES_A_TOKEN = 4  # of English, for the estimate
MALFORMED_IN_A_ROW = 5  # replies after which no more are paid for

_DECLINES = re.compile(
    r"\s*(?:(?:i['’]?m |i am )?sorry|i apologi[sz]e|i can(?:['’]t|not| not)|i won['’]t"
    r"|(?:i['’]m |i am )?(?:unable|not able) to)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """The settings that determine the ratings, given the server and the summaries."""

    samples: int = 500
    seed: int = 0
    prompt: Path = PROMPT
    document_words: int = 0
    """Words of each document in the prompt; 0: all."""
    request: Mapping[str, Any] = field(default_factory=lambda: dict(REQUEST))
    """Further fields of every request."""


@dataclass(frozen=True)
class Prices:
    """Prices of a million tokens, in any currency, and the most that may be spent."""

    input: float
    output: float
    most: float

    def of(self, tokens: tuple[int, int]) -> float:
        """The cost of (read, written) tokens."""
        return (tokens[0] * self.input + tokens[1] * self.output) / 1e6


def read_prompt(path: Path) -> str:
    """A prompt; ValueError unless it has {document} and {summary} once each."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    for place in ("{document}", "{summary}"):
        if text.count(place) != 1:
            raise ValueError(f"{path} has {place} {text.count(place)} times, expected once")
    return text


def fill(prompt: str, document: str, summary: str) -> str:
    """The prompt with both texts filled in; braces inside the texts stay as they are."""
    texts = {"{document}": document, "{summary}": summary}
    return re.sub(r"\{document\}|\{summary\}", lambda match: texts[match.group()], prompt)


def first_words(text: str, count: int) -> str:
    """The text up to and including word `count`, unchanged; 0: all of it."""
    match = re.match(rf"\s*(?:\S+\s+){{{count - 1}}}\S+", text) if count else None
    return match.group() if match else text


def choose(summaries: list[EvaluatedSummary], samples: int, seed: int) -> list[EvaluatedSummary]:
    """A seeded random sample of the examples, in their order; all of them if there are fewer."""
    if samples >= len(summaries):
        return summaries
    return sorted(random.Random(seed).sample(summaries, samples), key=lambda one: one.index)


class Judge:
    """The questions about one system's summaries, their cost and their answers.

    Raises ValueError when the prompt, the request or the documents cannot be used.
    """

    def __init__(
        self,
        finished: FinishedEvaluation,
        document: Callable[[int], str],
        endpoint: ChatEndpoint,
        settings: JudgeSettings,
        prices: Prices,
    ) -> None:
        self.finished, self.endpoint, self.prices = finished, endpoint, prices
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
            "model": endpoint.model,
            "server": endpoint.name,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "request": self.request,
            "samples": settings.samples,
            "seed": settings.seed,
            "document_words": settings.document_words,
        }
        slug = re.sub(r"[^\w.-]+", "-", endpoint.model)[-40:].strip("-.")
        self.name = f"{slug}-{fingerprint(self.settings)}"
        self.stem = finished.folder / f"judge-{finished.system}-{self.name}"
        self.started = {
            **self.settings,
            "predictions_sha256": finished.sha256,
            "packages": {"openai": openai_package().__version__},
        }

    def replies(self) -> JsonlStore:
        """The replies on disk: `judge-<system>-<model>-<hash>.jsonl` next to the predictions."""
        return JsonlStore(Path(f"{self.stem}.jsonl"), self.started)

    def estimate(self, done: Mapping[int, Any]) -> tuple[int, int]:
        """Tokens of the missing examples: read (estimate) and written (upper bound)."""
        missing = [text for index, text in self.prompts.items() if index not in done]
        read = sum(len(text.encode()) // BYTES_A_TOKEN + 1 for text in missing)
        return read, self.longest_reply * len(missing)

    def spent(self, done: Mapping[int, Any]) -> tuple[int, int]:
        """Tokens read and written so far: the server's counts, estimates where it gives none."""
        known = [record["tokens"] for record in done.values()]
        return sum(read for read, _ in known), sum(written for _, written in known)

    def cost_line(self, done: Mapping[int, Any]) -> str:
        """The remaining work and its cost, in one line."""
        read, written = self.estimate(done)
        return (
            f"{len(self.prompts) - len(done)} of {len(self.prompts)} examples to be judged by "
            f"{self.endpoint.model}: about {read:,} tokens to read, at most {written:,} to write, "
            f"cost about {self.prices.of((read, written)):.2f}, {self._cost(done):.2f} spent before"
        )

    def check_cost(self, done: Mapping[int, Any]) -> None:
        """Raise ValueError when asking would make the total cost exceed `prices.most`."""
        if len(done) == len(self.prompts):
            return  # kept replies cost nothing more
        total = self._cost(done) + self.prices.of(self.estimate(done))
        if total > self.prices.most:
            raise ValueError(
                f"{self.cost_line(done)}; allow it with --max_cost {_ceil(total)} or more"
            )

    def run(self, store: JsonlStore, pace: Pace) -> dict[str, Any]:
        """Ask about the missing examples, keep every reply, write the result once all are there.

        Raises ValueError when examples have no reply, none was rated, several replies in a row are
        malformed or `prices.most` is spent: replies so far are on disk, and the next run resumes
        from them. Malformed ones are parsed again, as a newer version may understand them.
        """
        self.check_cost(store.records)
        kept = {index: parsed_again(record) for index, record in store.records.items()}
        in_a_row: list[Record] = []
        bar = Progress("Judge", len(self.prompts), "examples", len(store.records))

        def take(index: int, answer: Answer | Rejected) -> None:
            kept[index] = record = self._record(index, answer)
            store.append(record)
            if record["outcome"] == "rated":
                in_a_row.clear()
            elif record["outcome"] == "malformed":
                in_a_row.append(record)
            bar.update(note=_counts(kept))

        def enough() -> bool:
            return (
                len(in_a_row) >= MALFORMED_IN_A_ROW or self._cost(store.records) > self.prices.most
            )

        missing = {i: text for i, text in self.prompts.items() if i not in kept}
        try:
            client = ChatClient(self.endpoint, self.request, pace)
            unanswered = asyncio.run(ask_all(client, missing, take, enough))
        finally:
            bar.close()
        left = len(self.prompts) - len(kept)
        if left and len(in_a_row) >= MALFORMED_IN_A_ROW:
            raise ValueError(
                f"{len(in_a_row)} replies in a row lack the four ratings, such as "
                f"{_shown(in_a_row[-1])}: stopped, {left} of {len(self.prompts)} examples are not "
                f"asked; {len(kept)} replies are kept in {store.path}; change --prompt, --request "
                "or the model, or run again to go on"
            )
        if left:
            reasons = Counter(unanswered.values()).most_common(1)
            why = reasons[0][0] if reasons else f"{self._cost(store.records):.2f} is spent"
            raise ValueError(
                f"{left} of {len(self.prompts)} examples have no reply ({why}); "
                f"{len(store.records)} are kept in {store.path}; run again to resume"
            )
        result = self._result([kept[one.index] for one in self.chosen], store.path)
        replace_json(Path(f"{self.stem}.json"), result)
        return result

    def _record(self, index: int, answer: Answer | Rejected) -> dict[str, Any]:
        common = {"index": index, "id": self.finished.summaries[index].id}
        if isinstance(answer, Rejected):
            return {**common, "outcome": "rejected", "reply": answer.reason, "tokens": [0, 0]}
        outcome, ratings = judged(answer)
        estimate = len(self.prompts[index].encode()) // BYTES_A_TOKEN, self.longest_reply
        return {
            **common,
            "outcome": outcome,
            "ratings": ratings,
            "reply": answer.refusal or answer.text,
            "finish_reason": answer.finish_reason,
            "tokens": list(answer.tokens or estimate),
        }

    def _result(self, records: list[dict[str, Any]], path: Path) -> dict[str, Any]:
        counts = Counter(record["outcome"] for record in records)
        rated = [record["ratings"] for record in records if record["outcome"] == "rated"]
        if not rated:
            raise ValueError(
                f"none of {len(records)} replies has the four ratings ({_counts_of(counts)}), "
                f"the first is {_shown(records[0])}; they are kept in {path}"
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
            "settings": self.started,
            "dataset": self.finished.results["settings"]["dataset"],
        }

    def _cost(self, done: Mapping[int, Any]) -> float:
        return self.prices.of(self.spent(done))


def judged(answer: Answer) -> tuple[str, dict[str, int] | None]:
    """The outcome of an answer: rated (with its ratings), refused or malformed."""
    if answer.refusal or answer.finish_reason == "content_filter":
        return "refused", None
    ratings = parse_reply(answer.text) if answer.finish_reason != "length" else None
    if ratings:
        return "rated", ratings
    return ("refused" if _DECLINES.match(answer.text) else "malformed"), None


def parsed_again(record: Record) -> Record:
    """A kept record by the present rules: a malformed reply may have become a rated one."""
    if record["outcome"] != "malformed":
        return record
    outcome, ratings = judged(Answer(record["reply"], "", record.get("finish_reason", ""), None))
    return {**record, "outcome": outcome, "ratings": ratings}


def _longest_reply(request: Mapping[str, Any]) -> int:
    """The limit of a reply's tokens, which the request must set."""
    limits = [request.get(name) for name in ("max_tokens", "max_completion_tokens")]
    stated = [limit for limit in limits if type(limit) is int and limit > 0]
    if not stated:
        raise ValueError(
            f"--request {json.dumps(dict(request))} sets no limit on replies, so the cost is "
            "unbounded; add max_tokens or max_completion_tokens"
        )
    return max(stated)


def _shown(record: Record) -> str:
    """The beginning of a reply, and whether it was cut at the limit of its tokens."""
    cut = ", cut at max_tokens" if record.get("finish_reason") == "length" else ""
    return f"{record['reply'][:100]!r}{cut}"


def _ceil(cost: float) -> str:
    """A cost in hundredths, rounded up."""
    return f"{-(-cost * 100 // 1) / 100:.2f}"


def _counts(records: Mapping[int, Any]) -> str:
    return _counts_of(Counter(record["outcome"] for record in records.values()))


def _counts_of(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
