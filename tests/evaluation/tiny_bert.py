"""BERT models of a few thousand random weights, with a WordPiece vocabulary made on the spot."""

import string
from pathlib import Path

import torch

WORDS = "river stone mill children watch herons evening light window gold someone bread".split()


def make_bert(folder: Path, seed: int, layers: int = 3, vocabulary: int = 0, **tokenizer) -> Path:
    """A folder as save_pretrained writes it: BertForMaskedLM and its tokenizer.

    The vocabulary is letters and a few words, which alone it predicts, and fillers up to the given
    size.
    """
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    letters = [*string.ascii_lowercase, *string.digits]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *".,'!?"]
    pieces += letters + [f"##{letter}" for letter in letters]
    pieces += [f"word{number}" for number in range(vocabulary - len(pieces))]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    BertTokenizer(str(folder / "vocab.txt"), **tokenizer).save_pretrained(folder)
    torch.manual_seed(seed)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(pieces),
            hidden_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # else all tokens of a position look alike
                parameter.mul_(25)
        model.cls.predictions.bias[5 : 5 + len(WORDS)] = 1000.0
    model.save_pretrained(folder)
    return folder
