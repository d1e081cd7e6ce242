"""The paper's nine tables with ours below; here those of scores."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.evaluation.comparison import LEGEND, Cells, Table, Value
from pipeline.evaluation.material import Evaluation, Material, Results, system_title
from pipeline.evaluation.page import escape
from pipeline.evaluation.paper import LONGT5, PaperSet, mean_column, paper
from pipeline.evaluation.paper_measurements import (
    ONE,
    TWO,
    complexity,
    datasets,
    hyperparameters,
    memory_table,
    throughput,
)
from pipeline.evaluation.tables import markdown_table

MISPRINT = 0.2
"""Percent of LongT5 by which print and rows may differ by rounding alone."""
ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
MEAN = "Mean ROUGE"
PRINTED, RECOMPUTED = "% of LongT5, printed", "% of LongT5, from the rows"
BERT_SCORE, BLANC = "BERTScore, model not named", "BLANC, model not named"
GEOMETRIC = "geometric mean"
RATINGS = ("relevance", "consistency", "fluency", "coherence")
HEADLINE = {"bert_score": "f1", "blanc": "blanc"}  # the figure of a metric that the paper prints


def tables(material: Material) -> Iterator[str]:
    """All of them, in parts of Markdown."""
    yield LEGEND
    parts: dict[str, Callable[[Material], Iterator[str]]] = {
        "Complexity": complexity,
        "arXiv, PubMed and BookSum-Chapter": summarisation,
        "SCROLLS": scrolls,
        "Throughput": throughput,
        "BookSum-Book": books,
        "Extrapolation": extrapolation,
        "Judge": judge,
        "Data sets": datasets,
        "Hyper-parameters": hyperparameters,
    }
    for number, (name, part) in enumerate(parts.items(), start=1):
        yield f"### {number}. {name}"
        yield from part(material)


def settings_line(name: str, results: Mapping[str, Any]) -> str:
    """How an evaluation of ours was made, for below a table."""
    dataset, decoding = results["settings"]["dataset"], results["settings"]["decoding"]
    recipe = results["settings"].get("rouge", {})
    source = decoding.get("source_length", "not recorded")
    stemmer = "with" if recipe.get("stemmer") else "without"
    return (
        f"{name}: {results['examples']:,} documents of {escape(dataset['name'])} "
        f"({escape(dataset['split'])}), {decoding['method']}, "
        f"source {f'{source:,} tokens' if isinstance(source, int) else source}, "
        f"at most {decoding['max_new_tokens']:,} new tokens; "
        f"{recipe.get('package', 'rouge-score')} {stemmer} stemmer"
    )


def _ours(evaluations: Mapping[str, Evaluation]) -> str:
    lines = [settings_line(system_title(s), one.results) for s, one in evaluations.items()]
    return f"Ours: {'. '.join(lines)}." if lines else ""


def _values(scores: Mapping[str, Any], columns: Mapping[str, str]) -> Cells:
    return {shown: scores[name]["value"] for name, shown in columns.items()}


def summarisation(material: Material) -> Iterator[str]:
    """ROUGE, BERTScore, BLANC and percent of LongT5, a table a set."""
    for name in ("arxiv", "pubmed", "booksum_chapter"):
        theirs = paper().sets[name]
        evaluations = material.evaluations.get(name, {})
        yield f"**{theirs.title}**"
        columns = {ROUGE[k]: ONE for k in ("rouge1", "rouge2", theirs.last)}
        columns |= {MEAN: TWO, PRINTED: ONE, RECOMPUTED: ONE, BERT_SCORE: ONE, BLANC: ONE}
        metrics = {system: _metric_cells(one) for system, one in evaluations.items()}
        columns |= dict.fromkeys((c for cells in metrics.values() for c in cells), TWO)
        ours = _rouge_rows(name, evaluations)
        table = Table(
            columns,
            {system_title(system): _published(theirs, system) for system in theirs.rows},
            {
                system_title(system): {"": {**cells, **metrics[system]}}
                for system, cells in ours.items()
            },
            [text for text in (_misprints(theirs), _ours(evaluations)) if text],
        )
        yield from table.markdown()
    yield (
        "The paper names neither BERTScore's model nor BLANC's, so each model and setting of ours "
        "has a column of its own, without a difference."
    )


def _published(theirs: PaperSet, system: str) -> Cells:
    row = theirs.rows[system]
    return {
        ROUGE["rouge1"]: row.rouge1,
        ROUGE["rouge2"]: row.rouge2,
        ROUGE[theirs.last]: row.third,
        MEAN: row.mean_rouge,
        PRINTED: row.percent,
        RECOMPUTED: theirs.percent(system),
        BERT_SCORE: row.bert_score,
        BLANC: row.blanc,
    }


def _rouge_rows(name: str, evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Value]]:
    """By system: the three types of a set's table, their mean and its percent of LongT5's."""
    last = paper().sets[name].last
    columns = {k: ROUGE[k] for k in ("rouge1", "rouge2", last)} | {mean_column(name): MEAN}
    rows = {
        system: dict(_values(one.results["systems"]["model"], columns))
        for system, one in evaluations.items()
    }
    if base := rows.get(LONGT5, {}).get(MEAN):
        for row in rows.values():
            row[RECOMPUTED] = 100 * row[MEAN] / base  # type: ignore[operator]
    return rows


def _metric_cells(evaluation: Evaluation) -> dict[str, Value]:
    """BERTScore and BLANC of an evaluation, under the names of their models and settings."""
    return {
        escape(found["column"]): found["scores"][HEADLINE[found["metric"]]]["value"]
        for found in evaluation.metrics
        if found["metric"] in HEADLINE
    }


def misprints(theirs: PaperSet) -> dict[str, tuple[float, float]]:
    """By system the percent of LongT5 as printed and from the rows, where rounding is no reason."""
    return {
        system: (row.percent, theirs.percent(system))
        for system, row in theirs.rows.items()
        if row.percent is not None and abs(row.percent - theirs.percent(system)) > MISPRINT
    }


def _misprints(theirs: PaperSet) -> str:
    found = [
        f"{system_title(system)} {printed:.1f} printed, {recomputed:.1f} from the rows"
        for system, (printed, recomputed) in misprints(theirs).items()
    ]
    return f"Print and rows differ: {'; '.join(found)}." if found else ""


def scrolls(material: Material) -> Iterator[str]:
    """The two sets by SCROLLS's own measure, then memory at 16K."""
    for name in ("govreport", "summscreenfd"):
        theirs = paper().sets[name]
        evaluations = material.evaluations.get(name, {})
        yield f"**{theirs.title}**"
        three = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
        columns = {"longest source": ",", **dict.fromkeys(three.values(), ONE)}
        columns |= {MEAN: TWO, GEOMETRIC: TWO, PRINTED: ONE, RECOMPUTED: ONE}
        table = Table(
            columns,
            {
                system_title(system): {
                    **_published(theirs, system),
                    "longest source": paper().scrolls[system][0],
                    GEOMETRIC: row.geometric_mean,
                }
                for system, row in theirs.rows.items()
            },
            {
                system_title(system): {
                    "": {
                        **cells,
                        **_best(evaluations[system].results, three),
                        "longest source": _source(evaluations[system].results),
                    }
                }
                for system, cells in _rouge_rows(name, evaluations).items()
            },
            [text for text in (theirs.note, _ours(evaluations)) if text],
            apart=frozenset({"longest source"}),
        )
        yield from table.markdown()
    yield (
        "ROUGE-1, -2, -L and their geometric mean, by which SCROLLS ranks, are the best over a "
        "document's references, Mean ROUGE is over the mean of them; with one reference that is "
        "the same."
    )
    yield "**Memory at 16K, as multiples of the least**"
    yield from memory_table(material.measurements).markdown()


def _best(results: Results, columns: Mapping[str, str]) -> Cells:
    """SCROLLS's figures."""
    best = results["best_over_references"]["model"]
    return _values(best, {**columns, "geometric_mean": GEOMETRIC})


def _source(results: Results) -> Value:
    return results["settings"]["decoding"].get("source_length")


def books(material: Material) -> Iterator[str]:
    """ROUGE of whole books, and the sweep over contexts."""
    theirs = paper().sets["booksum_book"]
    evaluations = material.evaluations.get("booksum_book", {})
    columns = {"parameters, M": ".0f", **{ROUGE[k]: ONE for k in ("rouge1", "rouge2", "rougeL")}}
    columns |= {MEAN: TWO, "mean, printed": ONE}
    table = Table(
        columns,
        {
            system_title(system): {
                **_published(theirs, system),
                "parameters, M": paper().books[system][0],
                "mean, printed": paper().books[system][1],
            }
            for system in theirs.rows
        },
        {
            system_title(system): {"": cells}
            for system, cells in _rouge_rows("booksum_book", evaluations).items()
        },
        [text for text in (_ours(evaluations),) if text],
    )
    yield from table.markdown()
    if material.contexts:
        yield "**Trained at several lengths**"
        yield _contexts(material)


def _contexts(material: Material) -> str:
    """The sweep over training contexts, of ours alone: the paper shows it as a figure."""
    names = ("rouge1", "rouge2", "rougeL", mean_column("booksum_book"))
    rows = []
    for system, sweep in material.contexts.items():
        for tokens, one in sorted(sweep.items()):
            scores = one.results["systems"]["model"]
            mean = scores[names[-1]]
            rows.append(
                [
                    system_title(system),
                    f"{tokens:,}",
                    str(_source(one.results) or "not recorded"),
                    *(f"{scores[name]['value']:.2f}" for name in names),
                    f"{mean['low']:.2f} to {mean['high']:.2f}",
                ]
            )
    header = ["system", "trained at", "read", "ROUGE-1", "ROUGE-2", "ROUGE-L", MEAN, "interval"]
    return markdown_table(header, rows, align="lrrrrrrr")


def extrapolation(material: Material) -> Iterator[str]:
    """Mean ROUGE on arXiv of models trained at 4K, by the tokens they read."""
    lengths = [4096, 8192]
    sweeps = _arxiv_sweeps(material)
    others = sorted({n for sweep in sweeps.values() for n in sweep} - {*lengths})
    shown = {n: f"{n // 1024}K" if n % 1024 == 0 else f"{n:,}" for n in (*lengths, *others)}
    gain = "gain at 8K, %"
    ours, remarks = {}, []
    for system, sweep in sweeps.items():
        cells: dict[str, Value] = {
            shown[n]: one.results["systems"]["model"][mean_column("arxiv")]["value"]
            for n, one in sweep.items()
        }
        if {*lengths} <= sweep.keys():
            first, second = (cells[shown[n]] for n in lengths)
            cells[gain] = 100 * (second / first - 1)  # type: ignore[operator]
        ours[system_title(system)] = {"": cells}
        remarks += [
            settings_line(f"{system_title(system)} at {shown[n]}", one.results)
            for n, one in sorted(sweep.items())
        ]
    published = {
        system_title(system): dict(zip((*map(shown.get, lengths), gain), row, strict=True))
        for system, row in paper().extrapolation.items()
    }
    columns = {**dict.fromkeys(shown.values(), TWO), gain: ONE}
    notes = [f"Ours: {'. '.join(remarks)}."] if remarks else []
    yield from Table(columns, published, ours, notes).markdown()  # type: ignore[arg-type]


def _arxiv_sweeps(material: Material) -> dict[str, dict[int, Evaluation]]:
    """By system and tokens read: the extrapolation's, and the set's own where they say how long."""
    found: dict[str, dict[int, Evaluation]] = {}
    for system, one in material.evaluations.get("arxiv", {}).items():
        if isinstance(source := _source(one.results), int):
            found[system] = {source: one}
    for system, sweep in material.extrapolation.items():
        found[system] = {**found.get(system, {}), **sweep}
    return found


def judge(material: Material) -> Iterator[str]:
    """Ratings of summaries of PubMed; a table for each judge of ours that is not the paper's."""
    published: dict[str, Cells] = {
        system_title(system): dict(zip(RATINGS, row, strict=True))
        for system, row in paper().judge.items()
    }
    found: dict[str, dict[str, Results]] = {}
    for system, one in material.evaluations.get("pubmed", {}).items():
        for metric in one.metrics:
            if metric["metric"] == "judge":
                found.setdefault(metric["column"], {})[system_title(system)] = metric
    same = [c for c, by in found.items() if _judge_model(by) == paper().judge_model]
    columns = dict.fromkeys(RATINGS, ONE)
    yield f"The paper's judge is {paper().judge_model}; 500 summaries, 1 (worst) to 5 (best)."
    ours: dict[str, dict[str, Cells]] = {}
    for column in same:
        for system, metric in found[column].items():
            ours.setdefault(system, {})[column] = _ratings(metric)
    yield from Table(columns, published, ours, [_asked(found[c]) for c in same]).markdown()
    for column, by_system in found.items():
        if column not in same:
            yield f"**{escape(column)}**, another judge, whose ratings are not the paper's scale:"
            rows = {system: {"": _ratings(metric)} for system, metric in by_system.items()}
            two = dict.fromkeys(RATINGS, TWO)
            yield from Table(two, {}, rows, [_asked(by_system)]).markdown()


def _judge_model(by_system: Mapping[str, Results]) -> Any:
    return next(iter(by_system.values()))["settings"].get("model")


def _ratings(metric: Results) -> Cells:
    return _values(metric["scores"], dict(zip(RATINGS, RATINGS, strict=True)))


def _asked(by_system: Mapping[str, Results]) -> str:
    lines = [
        f"{system}: {one['examples']} rated of {one.get('asked', one['examples'])} asked, "
        f"{one.get('refused', 0)} refused, {one.get('malformed', 0)} malformed"
        for system, one in by_system.items()
    ]
    return f"Ours: {'. '.join(lines)}."
