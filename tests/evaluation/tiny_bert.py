"""BERT models of a few thousand random weights, with a generated WordPiece vocabulary."""

import string
from pathlib import Path

import torch

WORDS = "nothing river stone mill children watch herons evening light window gold bread".split()


def make_bert(folder: Path, seed: int, layers: int = 3, vocabulary: int = 0, **tokenizer) -> Path:
    """A folder as save_pretrained writes it: BertForMaskedLM and its tokenizer.

    The vocabulary has letters, a few words, and fillers up to the given size.
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
            parameter.mul_(5)  # else all tokens of a position are alike
    model.save_pretrained(folder)
    return folder


def guess_what_is_around(folder: Path) -> Path:
    """Rewrite the weights to predict the most frequent word of the context, or "nothing"."""
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(folder)
    embeddings, heads = model.bert.embeddings, model.cls.predictions
    with torch.no_grad():
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        embeddings.word_embeddings.weight.zero_()
        torch.nn.init.eye_(embeddings.word_embeddings.weight[5 : 5 + len(WORDS)])
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.zero_()  # uniform attention
            layer.output.dense.weight.zero_()
            torch.nn.init.eye_(layer.attention.self.value.weight)
            torch.nn.init.eye_(layer.attention.output.dense.weight)
        torch.nn.init.eye_(heads.transform.dense.weight)
        heads.bias.fill_(-100.0)
        heads.bias[5 : 5 + len(WORDS)] = 0.0
    model.save_pretrained(folder)
    return folder
