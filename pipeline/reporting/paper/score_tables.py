"""The paper's tables of scores and ratings, with our figures below."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.common.html import escape, markdown_table
from pipeline.reporting.paper.comparison_table import Cells, Table, Value
from pipeline.reporting.paper.inputs import (
    PaperInputs,
    Results,
    SetEvaluation,
    arxiv_sweeps,
    system_title,
)
from pipeline.reporting.paper.measurement_tables import ONE, TWO, memory_table
from pipeline.reporting.paper.published import LONGT5, PaperSet, paper
from pipeline.scoring.rouge import mean_column

MISPRINT = 0.2
"""Largest difference, in percent of LongT5, that rounding alone explains."""
ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
MEAN = "Mean ROUGE"
PRINTED, RECOMPUTED = "% of LongT5, printed", "% of LongT5, from the rows"
BERT_SCORE, BLANC = "BERTScore, model not named", "BLANC, model not named"
GEOMETRIC = "geometric mean"
CUT = (
    "*References*: ours are whole; the published code cuts them at the target length, so that what "
    "longer ones go on to say costs recall here alone."
)
RATINGS = ("relevance", "consistency", "fluency", "coherence")
HEADLINE = {"bert_score": "f1", "blanc": "blanc"}  # the figure of each metric that the paper prints


def settings_words(results: Mapping[str, Any]) -> str:
    """Settings of one of our evaluations, for the notes below a table."""
    dataset, decoding = results["settings"]["dataset"], results["settings"]["decoding"]
    recipe = results["settings"].get("rouge", {})
    source = decoding.get("source_length", "not recorded")
    stemmer = "with" if recipe.get("stemmer") else "without"
    return (
        f"{results['examples']:,} documents of {escape(dataset['name'])} "
        f"({escape(dataset['split'])}), {decoding['method']}, "
        f"source {f'{source:,} tokens' if isinstance(source, int) else source}, "
        f"at most {decoding['max_new_tokens']:,} new tokens; "
        f"{recipe.get('package', 'rouge-score')} {stemmer} stemmer"
    )


def _ours(evaluations: Mapping[str, SetEvaluation]) -> str:
    """A line for a set's evaluations, by system."""
    return ours_line({system_title(system): one for system, one in evaluations.items()})


def ours_line(named: Mapping[str, SetEvaluation]) -> str:
    """The settings of evaluations, by their names; those of equal settings together."""
    equal: dict[str, list[str]] = {}
    for name, one in named.items():
        equal.setdefault(settings_words(one.results), []).append(name)
    lines = [f"{', '.join(names)}: {words}" for words, names in equal.items()]
    return f"Ours: {'. '.join(lines)}." if lines else ""


def _values(scores: Mapping[str, Any], columns: Mapping[str, str]) -> Cells:
    return {shown: scores[name]["value"] for name, shown in columns.items()}


def summarisation(inputs: PaperInputs) -> Iterator[str]:
    """ROUGE, BERTScore, BLANC and percent of LongT5: a table for each set."""
    for name in ("arxiv", "pubmed", "booksum_chapter"):
        theirs = paper().sets[name]
        evaluations = inputs.evaluations.get(name, {})
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
            title=theirs.title,
            needs=f"--evaluation {name}=FOLDER",
        )
        yield from table.headed()
    yield CUT
    yield (
        "The paper names neither BERTScore's model nor BLANC's, so each of our models and settings "
        "has its own column, without a difference."
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


def _rouge_rows(name: str, evaluations: Mapping[str, SetEvaluation]) -> dict[str, dict[str, Value]]:
    """By system: the set's three ROUGE types, their mean, and its percent of LongT5's."""
    last = paper().sets[name].last
    columns = {k: ROUGE[k] for k in ("rouge1", "rouge2", last)} | {mean_column(name): MEAN}
    rows = {
        system: dict(_values(one.results["systems"]["model"], columns))
        for system, one in evaluations.items()
    }
    base = rows.get(LONGT5, {}).get(MEAN)
    if base and len(rows) > 1:
        for row in rows.values():
            row[RECOMPUTED] = 100 * row[MEAN] / base  # type: ignore[operator]
    return rows


def _metric_cells(evaluation: SetEvaluation) -> dict[str, Value]:
    """BERTScore and BLANC of an evaluation, by the names of their models and settings."""
    return {
        escape(found["column"]): found["scores"][HEADLINE[found["metric"]]]["value"]
        for found in evaluation.metrics
        if found["metric"] in HEADLINE
    }


def misprints(theirs: PaperSet) -> dict[str, tuple[float, float]]:
    """By system: percent of LongT5 as printed and from the rows, where not equal to rounding."""
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
    return f"Printed percentages that differ from the rows: {'; '.join(found)}." if found else ""


def scrolls(inputs: PaperInputs) -> Iterator[str]:
    """The two SCROLLS sets, with the benchmark's own mean, then memory at 16K."""
    for name in ("govreport", "summscreenfd"):
        theirs = paper().sets[name]
        evaluations = inputs.evaluations.get(name, {})
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
            title=theirs.title,
            needs=f"--evaluation {name}=FOLDER",
        )
        yield from table.headed()
    yield (
        "ROUGE-1, -2, -L and their geometric mean (SCROLLS's ranking figure) take the best of a "
        "document's references, Mean ROUGE takes their mean; with one reference the two are equal."
    )
    yield CUT
    yield from memory_table(inputs.measurements).headed()


def _best(results: Results, columns: Mapping[str, str]) -> Cells:
    """SCROLLS's figures: the best over references, and their geometric mean."""
    best = results["best_over_references"]["model"]
    return _values(best, {**columns, "geometric_mean": GEOMETRIC})


def _source(results: Results) -> Value:
    return results["settings"]["decoding"].get("source_length")


def _read(source: Value) -> str:
    return f"{source:,}" if isinstance(source, int) else str(source or "not recorded")


def books(inputs: PaperInputs) -> Iterator[str]:
    """ROUGE of whole books, and the sweep over training contexts."""
    theirs = paper().sets["booksum_book"]
    evaluations = inputs.evaluations.get("booksum_book", {})
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
        title=theirs.title,
        needs="--evaluation booksum_book=FOLDER",
    )
    yield from table.markdown()
    yield CUT
    if inputs.contexts:
        yield "**Trained at several lengths**"
        yield _contexts(inputs)


def _contexts(inputs: PaperInputs) -> str:
    """Our sweep over training contexts; the paper has it as a figure only."""
    names = ("rouge1", "rouge2", "rougeL", mean_column("booksum_book"))
    rows = []
    for system, sweep in inputs.contexts.items():
        for tokens, one in sorted(sweep.items()):
            scores = one.results["systems"]["model"]
            mean = scores[names[-1]]
            rows.append(
                [
                    system_title(system),
                    f"{tokens:,}",
                    _read(_source(one.results)),
                    *(f"{scores[name]['value']:.2f}" for name in names),
                    f"{mean['low']:.2f} to {mean['high']:.2f}",
                ]
            )
    header = ["system", "trained at", "read", "ROUGE-1", "ROUGE-2", "ROUGE-L", MEAN, "interval"]
    return markdown_table(header, rows, align="lrrrrrrr")


def extrapolation(inputs: PaperInputs) -> Iterator[str]:
    """Mean ROUGE on arXiv of models trained at 4K, by source tokens read."""
    lengths = [4096, 8192]
    sweeps = arxiv_sweeps(inputs)
    others = sorted({n for sweep in sweeps.values() for n in sweep} - {*lengths})
    shown = {n: f"{n // 1024}K" if n % 1024 == 0 else f"{n:,}" for n in (*lengths, *others)}
    gain = "gain at 8K, %"
    ours: dict[str, dict[str, Cells]] = {}
    named: dict[str, SetEvaluation] = {}
    for system, sweep in sweeps.items():
        cells: dict[str, Value] = {
            shown[n]: one.results["systems"]["model"][mean_column("arxiv")]["value"]
            for n, one in sweep.items()
        }
        if {*lengths} <= sweep.keys():
            first, second = (cells[shown[n]] for n in lengths)
            cells[gain] = 100 * (second / first - 1)  # type: ignore[operator]
        ours[system_title(system)] = {"": cells}
        named |= {f"{system_title(system)} at {shown[n]}": sweep[n] for n in sorted(sweep)}
    published = {
        system_title(system): dict(zip((*map(shown.get, lengths), gain), row, strict=True))
        for system, row in paper().extrapolation.items()
    }
    columns = {**dict.fromkeys(shown.values(), TWO), gain: ONE}
    notes = [line for line in (ours_line(named),) if line]
    yield from Table(
        columns, published, ours, notes,  # type: ignore[arg-type]
        title="Extrapolation", needs="--extrapolation TOKENS=FOLDER",
    ).markdown()  # fmt: skip
    yield CUT


def judge(inputs: PaperInputs) -> Iterator[str]:
    """Ratings of PubMed summaries; a judge other than the paper's has its own table."""
    published: dict[str, Cells] = {
        system_title(system): dict(zip(RATINGS, row, strict=True))
        for system, row in paper().judge.items()
    }
    found: dict[str, dict[str, Results]] = {}
    for system, one in inputs.evaluations.get("pubmed", {}).items():
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
    notes = [_judged(found[column]) for column in same]
    yield from Table(
        columns, published, ours, notes, title="Ratings by the paper's judge",
        needs="--evaluation pubmed=FOLDER that judge.py has rated",
    ).markdown()  # fmt: skip
    for column, by_system in found.items():
        if column not in same:
            yield f"**{escape(column)}**: another judge, not comparable with the paper's ratings."
            rows = {system: {"": _ratings(metric)} for system, metric in by_system.items()}
            two = dict.fromkeys(RATINGS, TWO)
            yield from Table(two, {}, rows, [_judged(by_system)]).markdown()


def _judge_model(by_system: Mapping[str, Results]) -> Any:
    return next(iter(by_system.values()))["settings"].get("model")


def _ratings(metric: Results) -> Cells:
    return _values(metric["scores"], dict(zip(RATINGS, RATINGS, strict=True)))


def _judged(by_system: Mapping[str, Results]) -> str:
    lines = [
        f"{system}: {one['examples']} rated of {one.get('asked', one['examples'])} requests, "
        f"{one.get('refused', 0)} refused, {one.get('malformed', 0)} malformed"
        for system, one in by_system.items()
    ]
    return f"Ours: {'. '.join(lines)}."
