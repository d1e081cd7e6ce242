"""Sentence boundaries."""

import random
from pathlib import Path

import pytest

from pipeline.common.sentences import split_sentences

CASES = Path(__file__).parents[2] / "tests/fixtures/sentence_cases.txt"
UNDECIDED = ("Well... I am", "Yesterday, Yahoo!")  # both readings are possible


def without_space(text: str) -> str:
    return "".join(text.split())


def test_newlines_always_end_a_sentence():
    assert split_sentences("no full stop\nnext line\r\n\n  \nlast") == [
        "no full stop",
        "next line",
        "last",
    ]


def test_abbreviations_do_not_end_a_sentence():
    assert split_sentences("Dr. Smith, e.g. of Fig. 2, left. He came back!  Why? ") == [
        "Dr. Smith, e.g. of Fig. 2, left.",
        "He came back!",
        "Why?",
    ]


@pytest.mark.parametrize(
    "case",
    [
        line
        for line in CASES.read_text().splitlines()
        if line and not line.startswith(("#", *UNDECIDED))
    ],
)
def test_tricky_cases(case):
    assert split_sentences(case.replace("|", " ")) == case.split("|")


@pytest.mark.parametrize(
    "case",
    [
        "The bank of J. P. Morgan was large.|It grew.",
        "Karl P. Donfried wrote it.|See p.|The page is missing.",
        "Sec. Clinton met Adm. Mullen and Asst. Sec. Reich.|They agreed.",
        "Atty. Gen. Holder called Amb. Rice and Det. Benson.|Nobody came.",
        "It took 5 sec.|The SEC.|Company of ADM.|Then more.",
        "Compare Sec. 5 with sec. 6 of the act.|It changed.",
        "Ask Ann Lee, Psy.D. Lee or Tom Hall, Pharm.D. Hall for help.|They know.",
        "She holds a Psy.D.|He holds none.",
        "It was late. : and cold.|We left.",
        "as shown in fig . ; the rest follows .|it ends .",
    ],
)
def test_more_abbreviations_and_no_sentence_begins_with_a_colon(case):
    assert split_sentences(case.replace("|", " ")) == case.split("|")


def test_nothing_is_lost():
    text = "One. Two?\n“Three!” he said. \u2028 4.5 is a number… and so is 5."
    assert without_space("".join(split_sentences(text))) == without_space(text)
    assert split_sentences(" \n \t\n") == []
    draw = random.Random(0)
    for _ in range(5000):
        text = "".join(draw.choices('aIU.!?…"”’) ]\n\t-1\xa0\u2028:\x1c', k=draw.randrange(40)))
        sentences = split_sentences(text)
        assert without_space("".join(sentences)) == without_space(text)
        assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_dialogue_is_not_swallowed():
    text = '"No," he said. "It is late. We must go." She waited. "Now. Come." He went.'
    assert len(split_sentences(text)) == 7


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a" * 10**7, 1),
        ("word " * 2_000_000, 1),
        ("." * 10**7, 1),
        ("This is a sentence. " * 100_000, 100_000),
        ('."' * 2_000_000, 1),
        ("a.\t" * 500_000, 1),
        ("! - " * 500_000, 1),
        ("Mr. " * 500_000, 1),
        ("! " + "-" * 2_000_000, 2),
        ("." + '"' * 2_000_000, 1),
    ],
    ids=[
        "letters",
        "words",
        "stops",
        "sentences",
        "quotes",
        "tabs",
        "marks",
        "titles",
        "rule",
        "q",
    ],
)
def test_time_is_linear(text, count):
    """Quadratic time would take hours here."""
    assert len(split_sentences(text)) == count
