"""`split_sentences`: the public name of the project's sentence splitter."""

from pipeline.common.sentences import SPLITTER, split_sentences

__all__ = ["SPLITTER", "split_sentences"]
