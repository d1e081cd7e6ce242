"""Training a SentencePiece model with T5's ids on the texts of a corpus."""

import io
import random
import re
from collections.abc import Iterator, Sequence

import sentencepiece

from pipeline.common.progress import progress
from pipeline.common.sentences import split_sentences
from pipeline.common.stores import Location
from pipeline.tokenizer import EOS_ID, PAD_ID, UNK_ID
from preprocessing.readers.corpora import read_c4
from preprocessing.readers.entries import Item

SEED = 0
THREADS = 2  # fixed: sums over another number of threads round differently
LONGEST = 4192  # bytes of a line that SentencePiece reads; longer ones are cut into several


def train(inputs: Sequence[Location], vocab_size: int, max_sentences: int) -> bytes:
    """A unigram model of `vocab_size` pieces, T5's ids and normalisation, as the file's bytes.

    It learns from at most `max_sentences` lines of the inputs (C4's format), sampled with a fixed
    seed, so the same inputs give the same bytes. Raises ValueError if there is too little text.
    """
    lines = sample_lines(inputs, max_sentences)
    if not lines:
        raise ValueError(
            f"the {len(inputs)} input files hold no text to train a tokenizer on; expected "
            "records with the field text, as C4's"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=progress(lines, len(lines), "Tokenizer, text read", "lines"),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            normalization_rule_name="nmt_nfkc",
            byte_fallback=False,
            max_sentence_length=LONGEST,
            num_threads=THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        if least := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            raise ValueError(
                f"--vocab_size is {vocab_size}, but the characters of the text need at least "
                f"{least[1]}"
            ) from None
        most = re.search(r"<= (\d+)", str(error))  # where the text has too few different pieces
        smaller = f"a --vocab_size of at most {most[1]}" if most else "a smaller --vocab_size"
        raise ValueError(
            f"{len(lines)} lines are too few for {vocab_size} pieces; give more text or {smaller}"
        ) from None
    return model.getvalue()


def sample_lines(inputs: Sequence[Location], count: int) -> list[str]:
    """A uniform sample of at most `count` lines of the texts, in their original order.

    Reservoir sampling: one pass, `count` lines in memory.
    """
    draw = random.Random(SEED)
    kept: list[tuple[int, str]] = []
    for position, line in enumerate(_lines(inputs)):
        if len(kept) < count:
            kept.append((position, line))
        elif (slot := draw.randrange(position + 1)) < count:
            kept[slot] = (position, line)
    return [line for _, line in sorted(kept)]


def _lines(inputs: Sequence[Location]) -> Iterator[str]:
    for path in inputs:
        for _, record, _ in read_c4(Item(path)):
            if isinstance(record, str):
                continue
            for line in record["text"].split("\n"):
                if line.strip():
                    yield from pieces(line)


def pieces(line: str) -> Iterator[str]:
    """The line, or where it is too long for SentencePiece, in groups of sentences that fit."""
    if len(line.encode()) <= LONGEST:
        yield line
        return
    piece = ""
    for sentence in split_sentences(line):
        for part in _cut(sentence):
            joined = f"{piece} {part}" if piece else part
            if len(joined.encode()) > LONGEST:
                yield piece
                joined = part
            piece = joined
    yield piece


def _cut(sentence: str) -> Iterator[str]:
    """The sentence, or parts of it that certainly fit, cut at spaces where there are any."""
    width = LONGEST if len(sentence.encode()) <= LONGEST else LONGEST // 4
    while len(sentence) > width:
        end = sentence.rfind(" ", 1, width)
        end = width if end < 0 else end
        yield sentence[:end]
        sentence = sentence[end:].lstrip()
    yield sentence
