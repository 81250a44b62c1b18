"""Tables of what results hold, as text for a terminal and as HTML for a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Columns by name and their cells as text; all are numbers, so they stand to the right.

    Args:
        columns: the names of the columns.
        rows: the cells of each row, as many as there are columns.
        caption: a line of HTML above the table; the text has none.

    Examples:
        >>> print(Table(["exit", "cost"], [["1", "50.0%"], ["2", "100.0%"]]))
        exit    cost
           1   50.0%
           2  100.0%
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __str__(self) -> str:
        """One line of names, then one line per row."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)

    def html(self) -> str:
        """The same as HTML."""
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        rows = [_row("th", self.columns), *(_row("td", row) for row in self.rows)]
        return f"<table>{caption}{''.join(rows)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def millions(number: float) -> str:
    """A count in millions, or in thousands if it is small.

    Examples:
        >>> millions(125_585_856), millions(20_480)
        ('125.59 M', '20.5 k')
    """
    return f"{number / 1e6:,.2f} M" if number >= 1e5 else f"{number / 1e3:.1f} k"


def share(value: float | None, digits: int = 1) -> str:
    """A share as a percentage, a dash if it is not known.

    Examples:
        >>> share(0.125), share(None)
        ('12.5%', '–')
    """
    return "–" if value is None else f"{value:.{digits}%}"


def number(value: object) -> str:
    """A number with three digits; of several tasks, one for each; a dash if it is not known.

    Examples:
        >>> number(0.12345), number([1.0, 0.5]), number(None)
        ('0.123', '1.000 / 0.500', '–')
    """
    if isinstance(value, list | tuple):
        return " / ".join(map(number, value))
    return f"{value:.3f}" if isinstance(value, int | float) else "–"
