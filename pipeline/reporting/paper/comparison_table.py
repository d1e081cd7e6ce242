"""Tables with our figures below the paper's, and the difference below both."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.reporting.tables import markdown_table

Value = float | str | None
"""A figure, words instead of one, or an empty cell."""
Cells = Mapping[str, Value]
"""A row: its values by column."""
NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """The paper's rows and ours, by name, in the paper's order.

    A row of ours may have several variants, by name ("" for a single one). `columns` maps a
    column's name to the format of its figures, "" for words.
    """

    columns: Mapping[str, str]
    published: Mapping[str, Cells]
    ours: Mapping[str, Mapping[str, Cells]]
    remarks: list[str] = field(default_factory=list)
    """Notes below the table, a paragraph each."""
    apart: frozenset[str] = frozenset()
    """Columns without a difference: ours is another measure, or from another machine."""
    first: str = "system"
    """Header of the first column."""

    def markdown(self) -> Iterator[str]:
        """The table, the rows without figures of ours, and the remarks, as paragraphs."""
        names = list(dict.fromkeys((*self.published, *self.ours)))
        rows = [row for name in names for row in self._rows(name)]
        align = "ll" + "r" * len(self.columns)
        yield markdown_table([self.first, "", *self.columns], rows, align)
        missing = [name for name in names if not self.ours.get(name)]
        if missing:
            yield f"No figures of ours yet: {', '.join(missing)}."
        yield from self.remarks

    def _rows(self, name: str) -> Iterator[list[str]]:
        theirs = self.published.get(name)
        if theirs is not None:
            yield [name, "the paper", *self._shown(theirs)]
        for variant, cells in self.ours.get(name, {}).items():
            who = f"ours, {variant}" if variant else "ours"
            yield [name, who, *self._shown(cells)]
            if theirs is not None and (minus := self._difference(cells, theirs)):
                yield [name, "difference", *(minus.get(column, "") for column in self.columns)]

    def _shown(self, cells: Cells) -> list[str]:
        return [_shown(cells.get(column), form) for column, form in self.columns.items()]

    def _difference(self, ours: Cells, theirs: Cells) -> dict[str, str]:
        found = {}
        for column, form in self.columns.items():
            a, b = ours.get(column), theirs.get(column)
            if column not in self.apart and _is_figure(a) and _is_figure(b):
                found[column] = f"{a - b:+{form}}"  # type: ignore[operator]
        return found


LEGEND = f"In each table a difference is ours minus the paper's; {NOTHING} marks a missing figure."


def _is_figure(value: Value) -> bool:
    return isinstance(value, int | float)


def _shown(value: Value, form: str) -> str:
    if value is None:
        return NOTHING
    return f"{value:{form}}" if _is_figure(value) else str(value)
