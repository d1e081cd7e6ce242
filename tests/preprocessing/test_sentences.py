"""Sentence boundaries."""

from preprocessing.sentences import split_sentences


def test_newlines_always_end_a_sentence():
    assert split_sentences("no full stop\nnext line\r\n\n  \nlast") == [
        "no full stop",
        "next line",
        "last",
    ]


def test_abbreviations_do_not():
    assert split_sentences("Dr. Smith, e.g. of Fig. 2, left. He came back!  Why? ") == [
        "Dr. Smith, e.g. of Fig. 2, left.",
        "He came back!",
        "Why?",
    ]


def test_nothing_is_lost():
    text = "One. Two?\n“Three!” he said. \u2028 4.5 is a number… and so is 5."
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert split_sentences(" \n \t\n") == []
