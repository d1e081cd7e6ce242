"""A Hugging Face folder as a tokenizer, for the baselines' shards; transformers is an extra."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pipeline.tokenizer import Tokenizer


class HuggingFaceTokenizer:
    """A local folder with tokenizer.json, which alone decides the ids and travels with a dataset.

    `prefix_ids` is what the model expects before a text (BART: its start token). No code of the
    folder is run. Raises ValueError without transformers, without that file, or where the model
    does not end its texts by an end-of-sequence token.
    """

    file_name = "tokenizer.json"

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / self.file_name
        if not self.path.is_file():
            raise ValueError(
                f"{folder} has no {self.file_name}; `AutoTokenizer.from_pretrained(FOLDER)"
                ".save_pretrained(FOLDER)` writes it where transformers can convert the tokenizer"
            )
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError:
            raise ValueError(
                f"{folder} is a Hugging Face tokenizer, which needs transformers: "
                "`pip install -r requirements-extras.txt`"
            ) from None
        self.sha256 = hashlib.sha256(self.path.read_bytes()).hexdigest()
        # This class takes tokenizer.json as it is; a model's own may rebuild it.
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self.vocab_size = max(self._tokenizer.get_vocab().values()) + 1
        eos_id = self._tokenizer.eos_token_id
        *prefix, last = self._tokenizer("")["input_ids"] or [None]
        if eos_id is None or last != eos_id:
            raise ValueError(
                f"{folder} does not end its texts by an end-of-sequence token (eos_token); "
                "give the tokenizer of a model that generates from an encoder"
            )
        self.eos_id: int = eos_id
        self._special = set(self._tokenizer.all_special_ids) - {self._tokenizer.unk_token_id}
        self.prefix_ids: list[int] = prefix

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without prefix and EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; `</s>` and its like in a text leave none, and so end nothing."""
        if not texts:
            return []
        encoded = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return [[i for i in ids if i not in self._special] for ids in encoded["input_ids"]]


def open_tokenizer(path: str | Path) -> Tokenizer | HuggingFaceTokenizer:
    """A SentencePiece model, a folder with tokenizer.model, or a Hugging Face folder."""
    folder = Path(path)
    if (folder / Tokenizer.file_name).is_file() or not any(folder.glob("tokenizer*.json")):
        return Tokenizer(path)
    return HuggingFaceTokenizer(folder)
