"""Text to ids and back: a SentencePiece model with T5's id layout and 100 sentinels above it."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

FILE_NAME = "tokenizer.model"
SENTINELS = 100
PAD_ID, EOS_ID, UNK_ID = 0, 1, 2


class Tokenizer:
    """A SentencePiece model file, or a folder (a dataset, a checkpoint) holding tokenizer.model.

    Ids 0, 1 and 2 are padding, end of sequence and unknown; sentinel k has id vocab_size - 1 - k,
    as T5 lays them out, so T5's own 32,000 pieces give 32,100 ids.

    Raises ValueError if there is no such file, it is not a SentencePiece model, or its padding,
    end and unknown ids are not 0, 1 and 2.
    """

    file_name = FILE_NAME  # in a dataset or checkpoint folder
    pad_id, eos_id, unk_id = PAD_ID, EOS_ID, UNK_ID
    prefix_ids: tuple[int, ...] = ()  # nothing comes before a text

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.path = path / FILE_NAME if path.is_dir() else path
        if not self.path.is_file():
            raise ValueError(
                f"no tokenizer at {self.path}; give a SentencePiece model or a folder that holds "
                f"{FILE_NAME} (`python -m preprocessing.tokenizer train` makes one)"
            )
        model = self.path.read_bytes()
        self.sha256 = hashlib.sha256(model).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
            self.pieces = self._processor.GetPieceSize()
        except RuntimeError:
            self.pieces = 0
        if self.pieces == 0:
            raise ValueError(f"{self.path} is not a SentencePiece model")
        ids = (self._processor.pad_id(), self._processor.eos_id(), self._processor.unk_id())
        if ids != (PAD_ID, EOS_ID, UNK_ID):
            raise ValueError(
                f"{self.path} has pad, eos and unk ids {ids}, expected (0, 1, 2) as in T5; train "
                "one with `python -m preprocessing.tokenizer train`"
            )
        self.vocab_size = self.pieces + SENTINELS

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without EOS. Newlines and runs of spaces count as one space."""
        return self._processor.encode(text, out_type=int)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, on the calling thread alone."""
        return self._processor.encode(list(texts), out_type=int, num_threads=1)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a row of ids; padding, end, unknown and sentinels leave no trace.

        Raises ValueError on an id outside the vocabulary.
        """
        kept = []
        for index in map(int, ids):
            if not 0 <= index < self.vocab_size:
                raise ValueError(f"id {index} is outside the vocabulary of {self.vocab_size} ids")
            if UNK_ID < index < self.pieces:
                kept.append(index)
        return self._processor.decode(kept)

    def sentinel(self, k: int) -> int:
        """The id of sentinel k, 0 <= k < 100."""
        if not 0 <= k < SENTINELS:
            raise ValueError(f"sentinel {k} asked for; there are {SENTINELS}, from 0")
        return self.vocab_size - 1 - k
