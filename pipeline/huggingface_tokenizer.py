"""A Hugging Face tokenizer, for the baselines' shards; the package tokenizers is an extra."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.tokenizer import Tokenizer

PAD_TOKENS = ("<pad>", "[PAD]")


class HuggingFaceTokenizer:
    """A tokenizer.json, or a folder with one, which alone decides the ids and travels with data.

    `prefix_ids` is what the model expects before a text (BART: its start token), `pad_id` the
    padding's, EOS where there is none. No code of the folder is run. Raises ValueError without the
    package, without that file, or where it does not end texts by an end-of-sequence token.
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
                f"{self.path} does not end texts by an end-of-sequence token; "
                "give the tokenizer of a model that generates from an encoder"
            )
        self.eos_id: int = last
        self.pad_id: int = next((vocabulary[t] for t in PAD_TOKENS if t in vocabulary), last)
        self.prefix_ids: tuple[int, ...] = tuple(prefix)
        unknown = json.loads(content)["model"]
        self._special = special - {vocabulary.get(unknown.get("unk_token")), unknown.get("unk_id")}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without prefix and EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; `</s>` and its like in a text leave none, and so end nothing."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[i for i in one.ids if i not in self._special] for one in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a row of ids; special tokens, and ids without a token, leave no trace."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True).strip()


AnyTokenizer = Tokenizer | HuggingFaceTokenizer


def open_tokenizer(path: str | Path) -> AnyTokenizer:
    """A SentencePiece model, a tokenizer.json, or a folder with a tokenizer of either kind."""
    path = Path(path)
    if path.suffix == ".json":
        return HuggingFaceTokenizer(path)
    if (path / Tokenizer.file_name).is_file() or not any(path.glob("tokenizer*.json")):
        return Tokenizer(path)
    return HuggingFaceTokenizer(path)
