"""What figures from records share: complete groups of cells, means over suites, a grid of axes."""

from collections.abc import Mapping, Sequence

from tevlib.suite.cells import AUTO


class NotMeasured(Exception):
    """There is no record that the figure could be drawn from; the text says which ones it wants."""


def of_table(outcomes: Sequence[Mapping], table: str) -> list[Mapping]:
    """The outcomes of the cells of one table."""
    return [o for o in outcomes if o["cell"]["table"] == table]


def numbered(cells: Sequence[Mapping]) -> list[Mapping]:
    """The outcomes of cells whose budget is a number: an automatic one has no place on an axis of budgets."""
    return [o for o in cells if o["cell"]["budget"] != AUTO]


def whole(cells: Sequence[Mapping], keys: Sequence[str], metric: str | None = None) -> dict[tuple, list[Mapping]]:
    """Cells by `keys`, the groups only in which all are finished and, if one is asked for, have the metric."""
    groups: dict[tuple, list[Mapping]] = {}
    for o in cells:
        groups.setdefault(tuple(o["cell"][key] for key in keys), []).append(o)
    return {
        key: group
        for key, group in groups.items()
        if all(o["status"] == "finished" and (metric is None or o["metrics"].get(metric) is not None) for o in group)
    }


def hashes(groups: Mapping[object, Sequence[Mapping]]) -> list[str]:
    """The sorted hashes of the records in the groups, each once."""
    return sorted({o["hash"] for group in groups.values() for o in group})


def mean(values) -> float:
    """The mean of at least one number."""
    values = list(values)
    return sum(values) / len(values)


def mean_by_depth(columns: Sequence[Sequence[float]]) -> list[float]:
    """The mean of lists that are as long as the deepest tree of each; what a list has not is 0."""
    deepest = max(map(len, columns))
    return [mean(column[d] if d < len(column) else 0.0 for column in columns) for d in range(deepest)]


def plain(name: str) -> str:
    """A row's name without what it says in brackets: the table says that."""
    return name.split(" (")[0]


def grid(lines: int, columns: int, size: tuple[float, float], **options):
    """A figure and its axes, `axes[line][column]`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False, **options)
