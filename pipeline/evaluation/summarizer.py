"""From texts to summaries, with a word on what was read, how far it is, and what it took."""

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pipeline.benchmarking.meter import (
    GIB,
    Peak,
    is_out_of_memory,
    keep_no_freed_arrays,
    return_free_memory,
    synchronise,
)
from pipeline.estimation.reading import Document, Way
from pipeline.evaluation.decode import encode_source, generate_batch
from pipeline.evaluation.texts import read_text, strip_gutenberg
from pipeline.model import Locost
from pipeline.model.cross_attention import BUDGET_SHARE
from pipeline.model.decoder import DecoderState
from pipeline.model.generation import DecodingStrategy
from pipeline.model.memory import available_memory
from pipeline.progress import Progress
from pipeline.tokenizer import UNK_ID, Tokenizer

Record = dict[str, Any]
UNKNOWN_SHARE = 0.01
"""From this part of the tokens on it is said that the tokenizer does not know them."""


class Following:
    """Shows how far the encoder is, then the decoder: block by block, token by token."""

    def __init__(self, name: str, model: Locost, max_new_tokens: int) -> None:
        self.name, self.max_new_tokens = name, max_new_tokens
        self.steps = 0
        """Tokens written one after the other; of a beam search, the longest beam's."""
        self.form = ""
        """How the decoder attends the source, and how large that is."""
        blocks = list(model.encoder.blocks)
        self.bar = Progress(f"{name}: encoding", len(blocks), "blocks")
        self.hooks = [block.register_forward_hook(self._encoded) for block in blocks]
        self.hooks.append(model.decoder.norm.register_forward_hook(self._written))

    def started(self, state: DecoderState) -> None:
        """The source is encoded."""
        self.form = state.describe()
        self.bar.close()
        self.bar = Progress(f"{self.name}: writing", self.max_new_tokens, "tokens")

    def close(self) -> None:
        """Let go of the model, and draw the last state."""
        for hook in self.hooks:
            hook.remove()
        self.bar.close()

    def _encoded(self, *_: object) -> None:
        return_free_memory()  # what small arrays leave behind grows from block to block
        self.bar.update()

    def _written(self, *_: object) -> None:
        self.steps += 1
        self.bar.update(note=self.form)


@dataclass(frozen=True)
class Summarizer:
    """A model and how it is used."""

    model: Locost
    tokenizer: Tokenizer
    device: torch.device
    strategy: DecodingStrategy
    precision: str
    """bf16 or fp32."""
    source_length: int = 0
    """Most tokens of a text, EOS included; 0: all."""
    max_memory: int | None = None
    """Most bytes to hold, the model included; None: what is available, half of it for a cache."""
    encoding: str | None = None
    """That of all texts; None: what each is found to be in."""
    without_gutenberg: bool = False
    """Leave out Project Gutenberg's header and footer."""

    def summarize(self, name: str) -> Record:
        """The summary of one text and what it took.

        Raises ValueError for what is no text, does not fit the memory, or ran out of it all the
        same, OSError for what cannot be read.
        """
        began, cpu = time.perf_counter(), time.process_time()
        keep_no_freed_arrays()  # the plan counts on it
        peak = Peak(self.device)
        text, encoding = read_text(name, self.encoding)
        record: Record = {"file": name, "encoding": encoding, "gutenberg": None}
        if self.without_gutenberg:
            text, record["gutenberg"] = strip_gutenberg(text)
            if not text:
                raise ValueError(f"{name} is empty between Project Gutenberg's header and footer")
        source = encode_source(self.tokenizer, text, self.source_length)
        record |= {"tokens": len(source), "unknown_tokens": int((source == UNK_ID).sum())}
        way = self._way(name, len(source), peak.before)
        expected = (peak.before + way.peak) / GIB
        say(name, *what_was_read(record), f"{way.describe()}, at most {expected:.2f} GiB expected")

        summary, following = self._generate(name, source, way)
        synchronise(self.device)
        record |= {
            "summary": summary,
            "steps": following.steps,
            "token_block": way.token_block,
            "cross_attention": following.form,
            "seconds": round(time.perf_counter() - began, 3),
            "cpu_seconds": round(time.process_time() - cpu, 3),
            "expected_gib": round(expected, 3),
            "peak_gib": round(peak.total_bytes() / GIB, 3),
            # Some systems do not set back a CPU's mark of the highest.
            "peak_is_this_files": self.device.type != "cpu" or peak.resets,
        }
        say(name, *what_it_took(record))
        return record

    def _way(self, name: str, tokens: int, held: int) -> Way:
        """The fastest way that fits the memory; ValueError where none does."""
        narrow = self.precision == "bf16"
        available = available_memory(self.device)
        limit, cache = self.max_memory, self.strategy.memory_budget
        if cache is None:
            cache = int(BUDGET_SHARE * available) if limit is None else limit
        document = Document(
            self.model.config, tokens, self.strategy, 2 if narrow else 4, self.device.type != "cpu"
        )
        try:
            return document.way(held, held + available if limit is None else limit, cache)
        except ValueError as error:
            remedy = "" if narrow else ", or --precision bf16"
            raise ValueError(
                f"{name}: {error}; give less of the text by --source_length{remedy}"
            ) from None

    def _generate(self, name: str, source: np.ndarray, way: Way) -> tuple[str, Following]:
        self.model.encoder.use_token_blocks(way.token_block)
        strategy = replace(self.strategy, memory_budget=way.source if way.cached else 0)
        following = Following(name, self.model, strategy.max_new_tokens)
        try:
            (summary,) = generate_batch(
                self.model, self.tokenizer, [source], strategy, self.precision,
                self.device, following.started,
            )  # fmt: skip
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0]
            raise ValueError(f"{name}: {first}; give less of it by --source_length") from None
        finally:
            following.close()
        return summary, following


def what_was_read(record: Record) -> list[str]:
    """The first half of a record, in words."""
    unknown = record["unknown_tokens"] / record["tokens"]
    return [
        record["encoding"],
        *filter(None, [record["gutenberg"]]),
        f"{record['tokens']:,} tokens",
        *[f"{unknown:.0%} of them unknown to the tokenizer"] * (unknown >= UNKNOWN_SHARE),
    ]


def what_it_took(record: Record) -> list[str]:
    """The second half of a record, in words."""
    so_far = "" if record["peak_is_this_files"] else " (of the program so far)"
    return [
        f"{record['tokens']:,} tokens read, {record['steps']} written",
        f"{record['seconds']:.1f} s, {record['cpu_seconds']:.1f} s of CPU time",
        f"peak {record['peak_gib']:.2f} GiB{so_far}",
        record["cross_attention"],
    ]


def say(name: str, *parts: str) -> None:
    """A line about a file, beside the summaries."""
    print(f"{name}: {'; '.join(parts)}", file=sys.stderr, flush=True)
