"""What bert-score gives for a tiny RoBERTa under the transformers it was written for.

Made again by `python tests/evaluation/record_roberta.py`, in an environment with bert-score 0.3.13,
transformers 4.26.1, tokenizers 0.13.3, numpy 1.26.4 and pandas 2.1.4.
"""

import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "roberta_tiny"
RECORD = FIXTURE / "expected.json"
LIMIT, LAYERS = 62, 2
TEXTS = (
    "The mill stands by the river.", "the", "mill 1905", "Nobody came. It's old",
    "Ein Mühlrad ½", "x", "herons " * 40, "a stone  by the mill",
)  # fmt: skip
PAIRS = tuple(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))


def make_roberta(folder: Path, model_type: str = "roberta") -> Path:
    """A model folder; its weights are the same in every version of transformers."""
    from transformers import AutoConfig, AutoModel

    folder.mkdir(parents=True)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(FIXTURE / name, folder)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model(
        model_type, vocab_size=330, num_hidden_layers=LAYERS, max_position_embeddings=64, **sizes
    )
    model = AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


def main() -> None:
    """Write the record."""
    import bert_score
    from bert_score.utils import sent_encode

    with tempfile.TemporaryDirectory() as folder:
        model = make_roberta(Path(folder) / "model")
        scorer = bert_score.BERTScorer(model_type=str(model), num_layers=LAYERS)
        scorer._tokenizer.model_max_length = LIMIT
        found = {
            "packages": {name: version(name) for name in ("bert-score", "transformers")},
            "ids": [sent_encode(scorer._tokenizer, text) for text in TEXTS],
            "scores": [
                row.tolist() for row in torch.stack(scorer.score(*zip(*PAIRS, strict=True)), dim=1)
            ],
        }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
