"""The paper's tables of datasets and hyperparameters, with ours."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.common.html import escape, folded, markdown_table
from pipeline.common.settings import flatten
from pipeline.reporting.paper.comparison_table import NOTHING, Cells, Table, Value
from pipeline.reporting.paper.inputs import PaperInputs, ordered, split_name, title
from pipeline.reporting.paper.published import paper

PRETRAINING, SHARDS, FINETUNING, EVALUATION = (
    "pre-training", "pre-training shards", "fine-tuning", "evaluation",
)  # fmt: skip


def datasets(inputs: PaperInputs) -> Iterator[str]:
    """Pairs of each split, and the documents' lengths in tokens, of the splits given."""
    splits = ("train", "validation", "test")
    lengths = ("mean", "median", "max", "p90")
    columns = {**dict.fromkeys(splits, ","), "mean": ",.2f", **dict.fromkeys(lengths[1:], ",")}
    published: dict[str, Cells] = {
        one.title: dict(zip((*splits, *lengths), (*one.counts, *one.input), strict=True))
        for one in paper().sets.values()
    }
    ours: dict[str, dict[str, Cells]] = {}
    for name in ordered(inputs.manifests):
        manifests = {
            split_name(str(manifest["split"])): manifest for manifest in inputs.manifests[name]
        }
        if summarised := {s: m for s, m in manifests.items() if m["kind"] == "summarisation"}:
            cells: dict[str, Value] = {s: m["counts"].get("kept") for s, m in summarised.items()}
            largest = max(summarised.values(), key=lambda m: m["counts"].get("kept", 0))
            source = largest["lengths"].get("source", {})
            cells |= {column: source.get(column) for column in lengths}
            ours[title(name)] = {"": cells}
    remarks = [
        "Ours: pairs kept in the shards; source tokens of the largest split given, with the end "
        "token, before truncation."
    ]
    yield from Table(
        columns, published, ours, remarks, first="set", title="Datasets", needs="--data SET=FOLDER"
    ).markdown()


def hyperparameters(inputs: PaperInputs) -> Iterator[str]:
    """A table a stage: the paper's value or the published code's, where it is from, and ours."""
    found = _settings(inputs)
    needs = {PRETRAINING: "--pretrain", SHARDS: "--data", FINETUNING: "--finetune",
             EVALUATION: "--evaluation"}  # fmt: skip
    for stage, settings in paper().hyperparameters.items():
        rows = [
            [f"`{name}`", _shown(value), source, _ours(found[stage], name, value)]
            for name, (value, source) in settings.items()
        ]
        tables = [markdown_table(["setting", "value", "from", "ours"], rows, "lrlr")]
        if stage == FINETUNING:
            tables.append(_lengths(inputs))
        if found[stage]:
            yield from (f"**{stage[0].upper()}{stage[1:]}**", *tables)
        else:
            line = f"{stage[0].upper()}{stage[1:]}: no figures of ours yet; needs {needs[stage]}"
            yield from folded(line, tables)
    yield (
        "*From*: the paper; the authors' published code, where the paper says nothing; or ours, "
        "where neither does. A value of ours that differs is bold. Three are not settings: the "
        "corpus, C4, of which the paper names no part; the activation, a gated GELU (paper); "
        "fine-tuning without warm-up (code)."
    )


def _settings(inputs: PaperInputs) -> dict[str, list[Mapping[str, Any]]]:
    """Our settings by stage, of each run, set of shards or evaluation; fine-tunings by set."""
    manifests = [m for some in inputs.manifests.values() for m in some]
    return {
        PRETRAINING: [inputs.pretrain.settings] if inputs.pretrain else [],
        SHARDS: [
            {"vocab_size": m["tokenizer"]["vocab_size"], **m["settings"]}
            for m in manifests
            if m["kind"] != "summarisation"
        ],
        FINETUNING: [run.settings for run in inputs.finetune.values()],
        EVALUATION: [flatten(results["settings"]) for results in inputs.locost.values()],
    }


def _lengths(inputs: PaperInputs) -> str:
    """Longest source, target and passes over the data by set, as the paper has them and ours."""
    rows = []
    for name, one in paper().sets.items():
        settings = [inputs.finetune[name].settings] if name in inputs.finetune else []
        source, target = one.lengths
        rows.append(
            [
                one.title,
                f"{source:,}" if source else "1,024 to 32,768",
                _ours(settings, "data.source_length", source),
                f"{target:,}",
                _ours(settings, "data.target_length", target),
                "paper",
            ]
        )
    header = ["set", "source tokens", "ours", "target tokens", "ours", "from"]
    return markdown_table(header, rows, "lrrrrl")


def _ours(settings: Iterable[Mapping[str, Any]], name: str, value: Any) -> str:
    """The distinct values of a setting in our runs; bold where one is not the published value."""
    found = [one[name] for one in settings if name in one]
    shown = ", ".join(dict.fromkeys(map(_shown, found))) or NOTHING
    same = value is None or all(one == value for one in found)
    return shown if same else f"**{shown}**"


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return f"{value:,.10g}"
    return escape(value) if isinstance(value, str) else ", ".join(map(_shown, value))
