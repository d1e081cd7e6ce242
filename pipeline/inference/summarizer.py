"""From texts to summaries, with reports of the input, the progress and the cost."""

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.common.progress import Progress
from pipeline.common.units import GIB
from pipeline.distributed.device import (
    Peak,
    is_out_of_memory,
    keep_no_freed_arrays,
    return_free_memory,
    synchronise,
)
from pipeline.distributed.sequence_parallel import ends_together
from pipeline.distributed.world import World
from pipeline.inference.decode import Summary, encode_source, generate_batch
from pipeline.inference.memory import DocumentMemory, ReadingPlan
from pipeline.inference.texts import read_text, shown_name, strip_gutenberg
from pipeline.model import Locost
from pipeline.model.cross_attention import BUDGET_SHARE
from pipeline.model.decoder import DecoderState
from pipeline.model.generation import DecodingStrategy
from pipeline.model.memory import available_memory
from pipeline.tokenizer import UNK_ID, Tokenizer

Record = dict[str, Any]
UNKNOWN_SHARE = 0.01
"""Unknown characters are reported from this share on: a run of them is a single token."""


class GenerationProgress:
    """Shows the progress of the encoder by blocks, then of the decoder by tokens."""

    def __init__(self, name: str, model: Locost, max_new_tokens: int) -> None:
        self.name, self.max_new_tokens = name, max_new_tokens
        self.steps = 0
        """Decoding steps so far."""
        self.form = ""
        """How the decoder attends the source, and the memory that takes."""
        blocks = list(model.encoder.blocks)
        self.bar = Progress(f"{name}: encoding", len(blocks), "blocks")
        self.hooks = [block.register_forward_hook(self._encoded) for block in blocks]
        self.hooks.append(model.decoder.norm.register_forward_hook(self._written))

    def started(self, state: DecoderState) -> None:
        """Called once the source is encoded."""
        self.form = state.describe()
        self.bar.close()
        self.bar = Progress(f"{self.name}: writing", self.max_new_tokens, "tokens")

    def close(self) -> None:
        """Remove the hooks and draw the final state."""
        for hook in self.hooks:
            hook.remove()
        self.bar.close()

    def _encoded(self, *_: object) -> None:
        return_free_memory()  # else fragmentation grows from block to block
        self.bar.update()

    def _written(self, *_: object) -> None:
        self.steps += 1
        self.bar.update(note=self.form)


@dataclass(frozen=True)
class Summarizer:
    """A model and the settings of its use, on one process or on all that share the texts.

    All of those call the same methods: the first reads, and all have the results.
    """

    model: Locost
    tokenizer: Tokenizer
    world: World
    strategy: DecodingStrategy
    precision: str
    """bf16 or fp32."""
    source_length: int = 0
    """Maximum tokens of a text, EOS included; 0: all."""
    max_memory: int | None = None
    """Maximum bytes that a process holds, the model included; None: all available, half of it for
    a cache."""
    encoding: str | None = None
    """Encoding of all texts; None: detected for each."""
    without_gutenberg: bool = False
    """Remove Project Gutenberg's header and footer."""

    def summarize(self, name: str) -> Record:
        """The summary of one text, with its time and memory.

        Raises ValueError for input that is not text, does not fit in memory or runs out of it,
        OSError for a file that cannot be read.
        """
        began, cpu = time.perf_counter(), time.process_time()
        keep_no_freed_arrays()  # the plan relies on it
        peak = Peak(self.world.device)
        record, source = self.world.from_main(lambda: self._read(name), ValueError, OSError)
        held = peak.before - self.model.encoder.kept_bytes()
        plan = self.world.on_all(lambda: self._plan(name, len(source), held), ValueError)
        expected, each = (held + plan.peak) / GIB, " a process" * (self.world.size > 1)
        say(
            name, *input_report(record),
            f"{plan.describe()}, at most {expected:.2f} GiB{each} expected",
        )  # fmt: skip

        with ends_together(self.model.sequence):
            summary, progress = self._generate(name, source, plan)
        synchronise(self.world.device)
        used = self.world.gather((time.process_time() - cpu, peak.total_bytes()))
        cpu_seconds, peaks = zip(*used, strict=True)
        record |= {
            "summary": summary.text,
            **summary.marks(),
            "steps": progress.steps,
            "token_block": plan.token_block,
            "cross_attention": progress.form,
            "seconds": round(time.perf_counter() - began, 3),
            "cpu_seconds": round(sum(cpu_seconds), 3),
            "expected_gib": round(expected, 3),
            "peak_gib": round(max(peaks) / GIB, 3),  # of a process
            # Some systems cannot reset a CPU process's peak.
            "peak_is_this_files": self.world.device.type != "cpu" or peak.resets,
        }
        say(name, *cost_report(record), *faults(record, self.strategy.max_new_tokens))
        return record

    def _read(self, name: str) -> tuple[Record, np.ndarray]:
        """What is known of a text, and its ids (L,)."""
        text, encoding = read_text(name, self.encoding)
        record: Record = {"file": name, "encoding": encoding, "gutenberg": None}
        if self.without_gutenberg:
            text, record["gutenberg"] = strip_gutenberg(text)
            if not text:
                raise ValueError(
                    f"{shown_name(name)} is empty between Project Gutenberg's header and footer"
                )
        source = encode_source(self.tokenizer, text, self.source_length)
        record |= {
            "tokens": len(source),
            "unknown_tokens": int((source == UNK_ID).sum()),
            "characters": len(text),
            "unknown_characters": self.tokenizer.unknown_characters(text, source),
        }
        return record, source

    def _plan(self, name: str, tokens: int, held: int) -> ReadingPlan:
        """The fastest plan that fits in memory; ValueError where none does."""
        narrow, device = self.precision == "bf16", self.world.device
        available = available_memory(device)
        if device.type == "cpu":  # of which each process has its share
            available //= self.world.size
        limit, cache = self.max_memory, self.strategy.memory_budget
        if cache is None:
            cache = int(BUDGET_SHARE * available) if limit is None else limit
        memory = DocumentMemory(
            self.model.config, tokens, self.strategy, 2 if narrow else 4,
            device.type != "cpu", self.model.encoder.kept_bytes(), self.world.size,
        )  # fmt: skip
        limit = held + available if limit is None else limit
        try:
            return memory.choose_plan(held, limit, cache)
        except ValueError as error:
            remedies = memory.remedies(held, limit)
            raise ValueError(f"{shown_name(name)}: {error}; {remedies}") from None

    def _generate(
        self, name: str, source: np.ndarray, plan: ReadingPlan
    ) -> tuple[Summary, GenerationProgress]:
        self.model.encoder.use_token_blocks(plan.token_block)
        self.model.encoder.keep_kernels(plan.kernels > 0)
        strategy = replace(self.strategy, memory_budget=plan.source if plan.cached else 0)
        progress = GenerationProgress(shown_name(name), self.model, strategy.max_new_tokens)
        try:
            (summary,) = generate_batch(
                self.model, self.tokenizer, [source], strategy, self.precision,
                self.world.device, progress.started,
            )  # fmt: skip
        except (MemoryError, RuntimeError) as error:
            if self.world.size > 1 or not is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0]
            raise ValueError(
                f"{shown_name(name)}: {first}; shorten the text with --source_length"
            ) from None
        finally:
            progress.close()
        return summary, progress


def input_report(record: Record) -> list[str]:
    """What was read, for people."""
    unknown = record["unknown_characters"] / record["characters"]
    return [
        record["encoding"],
        *filter(None, [record["gutenberg"]]),
        f"{record['tokens']:,} tokens",
        *[f"{unknown:.0%} of the characters unknown to the tokenizer, unread"]
        * (unknown >= UNKNOWN_SHARE),
    ]


def cost_report(record: Record) -> list[str]:
    """Tokens, time and memory of a summary, for people."""
    so_far = "" if record["peak_is_this_files"] else " (of the process so far)"
    return [
        f"{record['tokens']:,} tokens read, {record['steps']} written",
        f"{record['seconds']:.1f} s, {record['cpu_seconds']:.1f} s of CPU time",
        f"peak {record['peak_gib']:.2f} GiB{so_far}",
        record["cross_attention"],
    ]


def faults(record: Record, max_new_tokens: int) -> list[str]:
    """What is wrong with a summary, and what to do, for people."""
    empty = "the summary is empty: the model ended it at once; --min_new_tokens demands a text"
    cut = (
        f"the summary is cut at {max_new_tokens:,} tokens, before the model ended it; a larger "
        "--max_new_tokens lets it go on"
    )
    return [empty] * record["empty"] + [cut] * record["cut"]


def say(name: str, *parts: str) -> None:
    """Print a line about a file on standard error."""
    print(f"{shown_name(name)}: {'; '.join(parts)}", file=sys.stderr, flush=True)
