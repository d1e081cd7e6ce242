"""Every system at a tiny size, and other kinds of tokenizers."""

import sys
from pathlib import Path

import tokenizers

from pipeline.baselines.systems import SYSTEMS
from pipeline.shards import Dataset
from preprocessing import retokenise

T5 = {
    "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
}  # fmt: skip
BART = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
}  # fmt: skip
MORE = {
    "longt5-tglobal": {"local_radius": 7, "global_block_size": 4},
    "longt5-local": {"local_radius": 7},
    "led": {"attention_window": 8},
    "bigbird": {"block_size": 4, "num_random_blocks": 1},  # sparse from 29 tokens on
    "lsg": {"block_size": 8, "sparse_block_size": 8},  # sparse from 17 tokens on
}
SMALL = {
    name: {**(T5 if "num_layers" in system.base else BART), **MORE.get(name, {})}
    for name, system in SYSTEMS.items()
}
HERE = [name for name, system in SYSTEMS.items() if not system.legacy]
"""Those in the transformers of requirements-extras.txt."""
PEGASUS_IDS = 96_103
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def save_byte_pairs(folder: Path, text: str) -> Path:
    """A tokenizer as of BART: byte pairs learnt from the text, between <s> (0) and </s> (2)."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=SPECIALS, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    model.train_from_iterator([text] * 9, trainer)
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _save(model, folder)


def save_many_words(folder: Path, words: list[str]) -> Path:
    """A tokenizer with as many ids as PEGASUS; those of the words exceed 16 bits."""
    known = ["<pad>", "</s>", "<unk>", *(f"unused{k}" for k in range(PEGASUS_IDS - 3 - len(words)))]
    vocabulary = {word: number for number, word in enumerate([*known, *words])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    model.normalizer = tokenizers.normalizers.Lowercase()
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.add_special_tokens(known[:3])
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return _save(model, folder)


def retokenised(data: Path, tokenizer: Path, output: Path, *more: object) -> Dataset:
    """The dataset made by the command."""
    words = ["--data", data, "--tokenizer", tokenizer, "--output", output, *more]
    before, sys.argv = sys.argv, ["retokenise", *map(str, words)]
    try:
        retokenise.main()
    finally:
        sys.argv = before
    return Dataset(output)


def _save(model: tokenizers.Tokenizer, folder: Path) -> Path:
    folder.mkdir(parents=True)
    model.save(str(folder / "tokenizer.json"))
    return folder
