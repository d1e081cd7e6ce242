"""Tables with our figures below the paper's, and the difference below both."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.common.html import folded, markdown_table


@dataclass(frozen=True)
class Spread:
    """The median of several runs, with their extremes."""

    value: float
    low: float
    high: float


Value = float | str | Spread | None
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
    title: str = ""
    """What the line of a folded table begins with."""
    needs: str = ""
    """The option that gives the table figures of ours."""

    def markdown(self) -> Iterator[str]:
        """The table, the rows without figures of ours, and the remarks, as paragraphs.

        Without any figure of ours it is folded to one line, which says what it needs.
        """
        if any(self.ours.values()):
            yield from self._paragraphs()
        else:
            line = f"{self.title}: no figures of ours yet" if self.title else "No figures of ours"
            yield from folded(f"{line}; needs {self.needs}" if self.needs else line,
                              self._paragraphs())  # fmt: skip

    def headed(self) -> Iterator[str]:
        """The table below its title, which a folded one has in its line."""
        if any(self.ours.values()):
            yield f"**{self.title}**"
        yield from self.markdown()

    def _paragraphs(self) -> Iterator[str]:
        names = list(dict.fromkeys((*self.published, *self.ours)))
        every = [cells for row in self.ours.values() for cells in row.values()]
        filled = [
            column
            for column in self.columns
            if any(cells.get(column) is not None for cells in (*self.published.values(), *every))
        ]
        rows = [row for name in names for row in self._rows(name, filled)]
        align = "ll" + "".join("r" if self.columns[column] else "l" for column in filled)
        yield markdown_table([self.first, "", *filled], rows, align)
        missing = [name for name in names if not self.ours.get(name)]
        if missing and len(missing) < len(names):
            yield f"No figures of ours yet: {', '.join(missing)}."
        yield from self.remarks

    def _rows(self, name: str, columns: list[str]) -> Iterator[list[str]]:
        theirs = self.published.get(name)
        if theirs is not None:
            yield [name, "the paper", *self._shown(theirs, columns)]
        for variant, cells in self.ours.get(name, {}).items():
            who = f"ours, {variant}" if variant else "ours"
            yield [name, who, *self._shown(cells, columns)]
            if theirs is not None and (minus := self._difference(cells, theirs)):
                yield [name, "difference", *(minus.get(column, "") for column in columns)]

    def _shown(self, cells: Cells, columns: list[str]) -> list[str]:
        return [_shown(cells.get(column), self.columns[column]) for column in columns]

    def _difference(self, ours: Cells, theirs: Cells) -> dict[str, str]:
        found = {}
        for column, form in self.columns.items():
            a, b = figure_of(ours.get(column)), figure_of(theirs.get(column))
            if column not in self.apart and a is not None and b is not None:
                shown = f"{a - b:+{form}}"
                found[column] = shown if re.search("[1-9]", shown) else shown[1:]
        return found


LEGEND = f"In each table a difference is ours minus the paper's; {NOTHING} marks a missing figure."


def figure_of(value: Value) -> float | None:
    """A cell's figure, of several runs their median; None for words and empty cells."""
    if isinstance(value, Spread):
        return value.value
    return value if isinstance(value, int | float) else None


def _shown(value: Value, form: str) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, Spread):
        return f"{value.value:{form}} ({value.low:{form}} to {value.high:{form}})"
    return str(value) if isinstance(value, str) else f"{value:{form}}"
