"""Measurements of tests/baselines/test_lsg.py in the Python that has LSG, as JSON.

python lsg_by_hand.py convert FOLDER TEXT   a tiny BART, converted, with its tokenizer
python lsg_by_hand.py compare FOLDER        ours and the package's own; a folder and back
"""

import json
import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent)]

import torch  # noqa: E402 (the root first)
import transformers  # noqa: E402
from lsg_converter import LSGConverter  # noqa: E402
from small_systems import BART, SMALL, save_byte_pairs  # noqa: E402

from pipeline.baselines.model import Baseline, load_baseline  # noqa: E402
from pipeline.baselines.registry import check_model, load_model, save_model  # noqa: E402
from pipeline.baselines.systems import BaselineConfig  # noqa: E402

SPARSE = {"block_size": 8, "sparse_block_size": 8, "sparsity_factor": 2}


def convert(folder: Path, text: str) -> None:
    """Its authors' way from BART to LSG, which leaves its own code in the folder."""
    bart = save_byte_pairs(folder.with_name("bart"), text)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(bart / "tokenizer.json"),
        bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", mask_token="<unk>",
    )  # fmt: skip
    tokenizer.save_pretrained(bart)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), **BART, max_position_embeddings=64, decoder_start_token_id=2,
        forced_eos_token_id=None,
    )  # fmt: skip
    transformers.BartForConditionalGeneration(config).save_pretrained(bart)
    network, tokenizer = LSGConverter(max_sequence_length=512).convert_from_pretrained(
        str(bart), "BartForConditionalGeneration", use_auth_token=False, **SPARSE
    )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def compare(folder: Path) -> dict:
    """Ours at reduced size against the package's own network."""
    torch.manual_seed(0)
    model = Baseline(BaselineConfig(name="lsg", vocab_size=96, settings=SMALL["lsg"]))
    source = torch.randint(3, 96, (3, 61))
    mask = torch.arange(61) < torch.tensor([[61], [40], [10]])
    labels = torch.randint(3, 96, (3, 7))
    labels[1, 4:] = -100
    theirs = model.network(input_ids=source, attention_mask=mask.long(), labels=labels)
    found = {"losses": [model(source, mask, labels).loss.item(), theirs.loss.item()]}

    gradients = []
    for recompute in (False, True):
        model.train().recompute_activations(recompute)
        model.zero_grad()
        model(source, mask, labels).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    found["gradients"] = [float(sum(g.abs().sum() for g in one)) for one in gradients]
    found["gradients_apart"] = max(
        float((a - b).abs().max()) for a, b in zip(*gradients, strict=True)
    )
    model.recompute_activations(False)

    found["attention"] = compare_attention(source, mask, labels)

    model.eval()
    one_layer = BaselineConfig(
        name="lsg", vocab_size=96, settings={**SMALL["lsg"], "encoder_layers": 1}
    )
    layer = Baseline(one_layer).eval()
    changed = source[:1].clone()
    changed[0, 40] = 3 + (changed[0, 40] - 2) % 93
    apart = layer(changed).encoder_states - layer(source[:1]).encoder_states
    found["moved"] = (apart.abs().sum(-1)[0] > 0).tolist()

    save_model(model, folder)
    loaded = load_model(folder)
    assert check_model(folder) == loaded.config
    found["folder"] = {
        "name": loaded.config.name,
        "config": json.loads((folder / "config.json").read_text()),
        "equal": torch.equal(
            loaded(source, mask, labels).logits, model(source, mask, labels).logits
        ),
        "dropout": load_baseline(folder, dropout=0.5).config.dropout,
    }

    with torch.device("meta"):
        base = Baseline(BaselineConfig(name="lsg", vocab_size=50_265))
    few = {**SMALL["lsg"], "max_position_embeddings": 61}
    short = Baseline(BaselineConfig(name="lsg", vocab_size=96, settings=few))
    found["limits"] = [base.limits, short.limits]
    short(source[:, :56], None, labels)
    found["millions"] = sum(parameter.numel() for parameter in base.parameters()) / 1e6

    found["refused"] = []
    for more in ({"sparsity_type": "best"}, {"block_size": 7}, {"blocks": 8}):
        settings = {**SMALL["lsg"], **more}
        try:
            Baseline(BaselineConfig(name="lsg", vocab_size=96, settings=settings))
        except ValueError as error:
            found["refused"].append(str(error))
    return found


def compare_attention(source: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> dict:
    """The fast attention and the package's plain products: kernels, calls of SDPA, results."""
    real, called = torch.nn.functional.scaled_dot_product_attention, []
    torch.nn.functional.scaled_dot_product_attention = lambda *given, **options: (
        called.append(None) or real(*given, **options)
    )
    found, results = {}, []
    for choice in ("fast", "eager"):
        torch.manual_seed(0)
        config = BaselineConfig(
            name="lsg", vocab_size=96, settings=SMALL["lsg"], eos_id=95, attention=choice
        )
        model = Baseline(config).train()
        called.clear()
        output = model(source, mask, labels)
        found[choice] = {"kernels": model.attention_kernels(), "calls": len(called)}
        output.loss.backward()
        tokens = model.generate(source, mask, max_new_tokens=5, num_beams=2)
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append([output.loss.detach(), output.logits.detach(), *gradients, tokens])
    torch.nn.functional.scaled_dot_product_attention = real
    found["apart"] = max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]), sys.argv[3])
    else:
        print(json.dumps(compare(Path(sys.argv[2]))))
