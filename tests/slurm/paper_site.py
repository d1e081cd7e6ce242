"""The small site with all that the paper's page needs: its six sets, baselines, metric models."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from baselines.small_systems import BART, SMALL, save_byte_pairs
from evaluation.tiny_bert import make_bert
from small_site import MODEL, Site

from pipeline.scoring.blanc import PYTHON as LEGACY
from pipeline.tokenizer import Tokenizer

# The paper's sets, in forms in which they are exported: the keys of document and summary, others.
EXPORTED = {
    "arxiv": ("article", "abstract", {}),
    "pubmed": ("article", "abstract", {}),
    "govreport": ("input", "output", {"id": "a"}),
    "summscreenfd": ("input", "output", {"id": "a"}),
    "booksum_chapter": ("text", "summary", {"chapter_id": "1"}),
    "booksum_book": ("text", "summary", {"bid": "1", "title": "A"}),
}
BY_HAND = Path(__file__).parents[1] / "baselines" / "lsg_by_hand.py"
GREEDY = "--max_new_tokens 8 --precision fp32"


def export_sets(site: Site) -> None:
    """The six sets, of the site's own pairs, and their recipes."""
    for name, (document, summary, others) in EXPORTED.items():
        (site.folder / "sets" / name).mkdir()
        recipe = site.write_recipe(f"finetune_{name}", validation_rouge=True, max_new_tokens=8)
        sizes = yaml.safe_load(recipe.read_text())
        sizes["model"] = {"dropout": 0.1}  # LOCOST's sizes are no settings of a baseline
        recipe.write_text(yaml.safe_dump(sizes))
        for split in ("train", "validation", "test"):
            pairs = (site.folder / "sets" / "docs" / f"{split}.jsonl").read_text().splitlines()
            records = (
                {document: pair["document"], summary: pair["summary"], **others}
                for pair in map(json.loads, pairs)
            )
            lines = (json.dumps(record) + "\n" for record in records)
            (site.folder / "sets" / name / f"{split}.jsonl").write_text("".join(lines))


def make_models(site: Site, legacy: bool) -> dict[str, Path]:
    """Baselines of a few thousand random weights by name, with their tokenizers, and a BERT."""
    import transformers

    models = site.folder / "models"
    text = (site.folder / "sets" / "docs" / "train.jsonl").read_text()[:50_000]
    vocabulary = Tokenizer(site.folder / "tokenizer.model").vocab_size
    longt5 = transformers.LongT5Config(
        vocab_size=vocabulary, **SMALL["longt5-tglobal"], decoder_start_token_id=0, pad_token_id=0,
        encoder_attention_type="transient-global",
    )  # fmt: skip
    transformers.LongT5ForConditionalGeneration(longt5).save_pretrained(models / "longt5-tglobal")
    shutil.copy(site.folder / "tokenizer.model", models / "longt5-tglobal")
    tokenizer = save_byte_pairs(models / "bart-large", text) / "tokenizer.json"
    bart = transformers.BartConfig(
        vocab_size=len(json.loads(tokenizer.read_text())["model"]["vocab"]), **BART,
        bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip
    transformers.BartForConditionalGeneration(bart).save_pretrained(models / "bart-large")
    found = {name: models / name for name in ("longt5-tglobal", "bart-large")}
    if legacy:
        words = [LEGACY, BY_HAND, "convert", models / "converted" / "lsg", text]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found["lsg"] = models / "converted" / "lsg"
    make_bert(models / "bert", seed=0, layers=2, model_max_length=512)
    return found


def paper_settings(site: Site, legacy: bool, judge: str) -> dict[str, str]:
    """Settings of a chain whose page lacks no table and no figure; `judge`: a chat server."""
    models = make_models(site, legacy)
    bert = site.folder / "models" / "bert"
    sizes = {
        "locost": {"vocab_size": 64, **MODEL},
        **{name: {**SMALL[name], "vocab_size": 64} for name in ("longt5-tglobal", "led")},
    }
    weights = {f"{name.upper().replace('-', '_')}_MODEL": str(path)
               for name, path in models.items()}  # fmt: skip
    return {
        "SETS": " ".join(EXPORTED),
        "GOVREPORT_EVALUATE_ARGUMENTS": GREEDY,
        # Two processes share each book.
        "BOOKSUM_BOOK_EVALUATE_ARGUMENTS": f"{GREEDY} --source_length 0",
        "BOOKSUM_BOOK_LOCOST_EVALUATE_ARGUMENTS": "--sequence_parallel_size 2",
        "EVALUATE_NODES": "2",
        "LOCOST_FINETUNE_ARGUMENTS": " ".join(f"--model.{k} {v}" for k, v in MODEL.items()),
        "EXTRAPOLATE": "128",
        "LONGT5_TGLOBAL_EXTRAPOLATE": "128",
        "CONTEXTS": "32",
        "BASELINES": " ".join(models),
        **weights,
        "LONGT5_TGLOBAL_SETS": "arxiv pubmed govreport",
        "LSG_SETS": "arxiv",
        "LSG_PYTHON": str(LEGACY),
        "METRIC_SETS": "pubmed",
        "BERT_SCORE_ARGUMENTS": f"--model {bert} --layer 2",
        "BLANC_ARGUMENTS": f"--model {bert}" if legacy else " ",
        "JUDGE_ARGUMENTS": "--price_input 0 --price_output 0",
        "OPENAI_BASE_URL": judge,
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": "gpt-3.5-turbo-16k",
        "NO_PROXY": "127.0.0.1",
        "SYSTEMS_ARGUMENTS": "--systems locost longt5-tglobal --lengths 1024,4096,16384 "
        f"--rounds 1 --tokens 8 --settings {json.dumps(sizes, separators=(',', ':'))}",
        "KERNELS_ARGUMENTS": "--lags 256",
        **dict.fromkeys(("PREPROCESS_JOBS", "PRETRAIN_NODES", "FINETUNE_NODES"), "1"),
        "NODE_CHECK": "0",
        # Four jobs at a time: each has all cores of its node.
        **{
            f"{kind}_FLAGS": "--cpus-per-task=64 --time=60"
            for kind in ("PRETRAIN", "FINETUNE", "EVALUATE", "MEASURE")
        },
        "PYTHON": sys.executable,
    }
