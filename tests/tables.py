"""Tables of the documents with one row for each model: tests compare rows, `make tables` writes them."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


class Table:
    """The table of a page whose first columns name a model.

    Args:
        page: the page in docs/.
        keys: what the first columns say, for every row in its order.
    """

    def __init__(self, page, keys):
        self.path, self.keys = DOCS / page, [tuple(key) for key in keys]

    def _split(self):
        """The text before the first row, and all rows by their keys."""
        text = self.path.read_text()
        start = re.search(r"^\|[-:|]+\|\n", text, re.M).end()
        rows = {tuple(line.strip("| ").split(" | "))[: len(self.keys[0])]: line for line in text[start:].splitlines()}
        return text[:start], rows

    def listed(self):
        """The models that have a row, as the page has them."""
        return list(self._split()[1])

    def check(self, row, write, exact=None):
        """Compare a row with the page's, its first cells only if ``exact`` says how many; or write it there."""
        cells = [str(cell) for cell in row]
        key = tuple(cells[: len(self.keys[0])])
        if write:
            start, rows = self._split()
            rows[key] = f"| {' | '.join(cells)} |"
            self.path.write_text(start + "".join(f"{rows[each]}\n" for each in self.keys if each in rows))
        shown = self._split()[1].get(key, "").removeprefix("| ").removesuffix(" |").split(" | ")
        assert shown[:exact] == cells[:exact], f"{self.path.name} says otherwise; run: make tables"
