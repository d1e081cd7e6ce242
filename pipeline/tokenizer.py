"""Text to ids and back: SentencePiece with T5's id layout, or a baseline's tokenizer.json."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import sentencepiece

FILE_NAME = "tokenizer.model"
SENTINELS = 100
PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
PAD_TOKENS = ("<pad>", "[PAD]")
SPACE = "\u2581"
"""SentencePiece's sign for a space."""
SENTINEL_PIECE = re.compile(r"<extra_id_\d+>")
EXPECTED_SENTINELS = [f"<extra_id_{k}>" for k in reversed(range(SENTINELS))]


class Tokenizer:
    """A SentencePiece model file, or a folder (a dataset, a checkpoint) holding tokenizer.model.

    Ids 0, 1 and 2 are padding, end of sequence and unknown; sentinel k has id vocab_size - 1 - k
    as in T5, so T5's own 32,000 pieces give 32,100 ids. A model that has the pieces <extra_id_k>
    itself, at those ids, keeps its size.

    Raises ValueError if there is no such file, it is not a SentencePiece model, its padding, end
    and unknown ids are not 0, 1 and 2, or its own sentinels are not T5's.
    """

    file_name = FILE_NAME  # in a dataset or checkpoint folder
    pad_id, eos_id, unk_id = PAD_ID, EOS_ID, UNK_ID
    prefix_ids: tuple[int, ...] = ()  # no tokens before a text

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
        self.has_sentinels = self._has_sentinels()
        self.pieces -= SENTINELS * self.has_sentinels
        self.vocab_size = self.pieces + SENTINELS

    def _has_sentinels(self) -> bool:
        """Whether the model's last pieces are T5's sentinels."""
        names = [self._processor.id_to_piece(i).lstrip(SPACE) for i in range(self.pieces)]
        own = [name for name in names if SENTINEL_PIECE.fullmatch(name)]
        if own and not (own == names[-SENTINELS:] == EXPECTED_SENTINELS):
            raise ValueError(
                f"{self.path} has {len(own)} pieces such as {own[0]}, expected none, or "
                f"<extra_id_{SENTINELS - 1}> to <extra_id_0> as its last; give the model without "
                "them"
            )
        return bool(own)

    @property
    def joins_whitespace(self) -> bool:
        """Whether newlines and runs of spaces count as one space, as in T5."""
        return self._processor.normalize("a \n b") == self._processor.normalize("a b")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without EOS; a sentinel spelled out in it gives no id.

        Newlines and runs of spaces count as one space where `joins_whitespace`.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, on the calling thread only."""
        rows = self._processor.encode(list(texts), out_type=int, num_threads=1)
        if self.has_sentinels:
            return [[index for index in row if index < self.pieces] for row in rows]
        return rows

    def unknown_characters(self, text: str, ids: Collection[int]) -> int:
        """Characters of a text, which has these `ids`, that the vocabulary lacks.

        A run of them, however long, is a single unknown id.
        """
        if UNK_ID not in ids:
            return 0
        mapping = self._processor.encode(text, out_type="offset_mapping")
        spans = zip(mapping["ids"], mapping["offsets"], strict=True)
        return sum(end - start for index, (start, end) in spans if index == UNK_ID)

    def decode(self, ids: Iterable[int], show_unknown: bool = False) -> str:
        """The text of a row of ids; padding, end and sentinels are dropped, unknown is too or "⁇".

        Raises ValueError on an id outside the vocabulary.
        """
        first = UNK_ID if show_unknown else UNK_ID + 1
        kept = []
        for index in map(int, ids):
            if not 0 <= index < self.vocab_size:
                raise ValueError(f"id {index} is outside the vocabulary of {self.vocab_size} ids")
            if first <= index < self.pieces:
                kept.append(index)
        return self._processor.decode(kept)

    def sentinel(self, k: int) -> int:
        """The id of sentinel k, 0 <= k < 100."""
        if not 0 <= k < SENTINELS:
            raise ValueError(f"sentinel {k} does not exist; give 0 to {SENTINELS - 1}")
        return self.vocab_size - 1 - k


class HuggingFaceTokenizer:
    """A tokenizer.json, or a folder with one; it alone defines the ids and is copied with datasets.

    `prefix_ids` are expected before a text (BART: its start token); `pad_id` is EOS if there is no
    padding token. No code of the folder is run. Raises ValueError if the package or the file is
    missing, or if it does not end texts with an end-of-sequence token.
    """

    file_name = "tokenizer.json"

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.path = path / self.file_name if path.is_dir() else path
        if not self.path.is_file():
            raise ValueError(
                f"{path} has no {self.file_name}; `AutoTokenizer.from_pretrained(FOLDER)"
                ".save_pretrained(FOLDER)` writes it where transformers can convert the tokenizer"
            )
        try:
            import tokenizers
        except ImportError:
            raise ValueError(
                f"{path} is a Hugging Face tokenizer, which needs the package tokenizers: "
                "`pip install -r requirements-extras.txt`"
            ) from None
        content = self.path.read_bytes()
        self.sha256 = hashlib.sha256(content).hexdigest()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the package has no error type of its own
            raise ValueError(f"{self.path} is not a tokenizer: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        vocabulary = self._tokenizer.get_vocab()
        self.vocab_size = max(vocabulary.values()) + 1
        added = self._tokenizer.get_added_tokens_decoder().items()
        special = {number for number, token in added if token.special}
        *prefix, last = self._tokenizer.encode("").ids or [-1]
        if last not in special:
            raise ValueError(
                f"{self.path} does not end texts with an end-of-sequence token; "
                "give the tokenizer of a model that generates from an encoder"
            )
        self.eos_id: int = last
        self.pad_id: int = next((vocabulary[t] for t in PAD_TOKENS if t in vocabulary), last)
        self.prefix_ids: tuple[int, ...] = tuple(prefix)
        unknown = json.loads(content)["model"]
        self._unknown = {vocabulary.get(unknown.get("unk_token")), unknown.get("unk_id")} - {None}
        self._special = special - self._unknown

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without prefix and EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; special tokens spelled out in a text (`</s>`) give no ids."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[i for i in one.ids if i not in self._special] for one in encoded]

    def unknown_characters(self, text: str, ids: Collection[int]) -> int:
        """Characters of a text, which has these `ids`, that the vocabulary lacks."""
        if self._unknown.isdisjoint(ids):
            return 0
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        spans = zip(encoded.ids, encoded.offsets, strict=True)
        return sum(end - start for index, (start, end) in spans if index in self._unknown)

    def decode(self, ids: Iterable[int], show_unknown: bool = False) -> str:
        """The text of a row of ids; special tokens and ids without a token are dropped, unknown
        ones are too or the tokenizer's own sign for them."""
        dropped = self._special if show_unknown else self._special | self._unknown
        kept = [index for index in map(int, ids) if index not in dropped]
        return self._tokenizer.decode(kept, skip_special_tokens=False).strip()


AnyTokenizer = Tokenizer | HuggingFaceTokenizer


def open_tokenizer(path: str | Path) -> AnyTokenizer:
    """A SentencePiece model, a tokenizer.json, or a folder with a tokenizer of either kind."""
    path = Path(path)
    if path.suffix == ".json":
        return HuggingFaceTokenizer(path)
    if (path / Tokenizer.file_name).is_file() or not any(path.glob("tokenizer*.json")):
        return Tokenizer(path)
    return HuggingFaceTokenizer(path)
