"""Tables 1, 2 and 5 as figures: mean block length and speed-up of their rows, with 95% intervals over prompts."""

from collections.abc import Mapping, Sequence

import pandas as pd

from tevlib.report.figures.cells import NotMeasured, grid, hashes, numbered, of_table, plain, whole
from tevlib.report.figures.style import INK, MARKERS, MUTED, colour_of, styled
from tevlib.report.names import METHOD_NAMES, OBJECTIVE_NAMES
from tevlib.report.objectives import objective_averages


@styled
def methods(outcomes: Sequence[Mapping]):
    """Table 1 as dots: mean block length and speed-up of every method, 95% intervals over prompts, and the ceiling."""
    return _rows(of_table(outcomes, "table1"), "ddtree", METHOD_NAMES, "Table 1's methods")


@styled
def objectives(outcomes: Sequence[Mapping]):
    """Table 2 as dots: mean block length and speed-up of every objective, 95% intervals over prompts, the ceiling."""
    return _rows(of_table(outcomes, "table2"), "original", OBJECTIVE_NAMES, "Table 2's objectives")


@styled
def budgets(outcomes: Sequence[Mapping]):
    """Table 5 as lines: mean block length and speed-up against the budget, with 95% intervals over prompts."""
    cells = numbered(of_table(outcomes, "table5"))
    sizes = sorted({o["cell"]["budget"] for o in cells})
    found = []
    for size in sizes:
        one = objective_averages([o for o in cells if o["cell"]["budget"] == size], "ddtree")
        found.append(one.assign(budget=size))
    frame = pd.concat(found) if found else pd.DataFrame()
    if frame.empty:
        raise NotMeasured("no budget of Table 5 is finished in all suites")
    temperatures = sorted(frame["temperature"].unique())
    figure, axes = grid(2, len(temperatures), (5.6 * len(temperatures), 6.8), sharex=True, sharey="row")
    for column, temperature in enumerate(temperatures):
        for line, (metric, name) in enumerate((("tau", "τ, tokens per round"), ("speedup", "speed-up SR"))):
            axis = axes[line][column]
            of = frame[(frame["temperature"] == temperature) & (frame["metric"] == metric)]
            for place, (role, rows) in enumerate(of.groupby("role", sort=False)):
                rows = rows.sort_values("budget")
                x = [b * 1.03 ** (place - 0.5) for b in rows["budget"]]  # beside each other, not on top
                _interval(axis, x, rows, colour_of(role), MARKERS.get(role, "v"), METHOD_NAMES.get(role, role), "-")
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
            axis.margins(x=0.12)
            if column == 0:
                axis.set_ylabel(name)
            if line == 0:
                axis.set_title(f"T = {temperature:g}")
            if metric == "speedup":
                axis.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
                axis.set_xlabel("tree budget B (draft tokens)")
    axes[0][0].legend(loc="best")
    return figure, hashes(whole(cells, ("temperature", "budget", "role")))


def _rows(cells: list[Mapping], reference: str, names: Mapping[str, str], what: str):
    """tau and SR of every row as dots with intervals, a panel for each, lines of panels by target and temperature."""
    targets = list(dict.fromkeys(o["cell"]["target"] for o in cells))
    blocks = []
    for target in targets:
        averages = objective_averages([o for o in cells if o["cell"]["target"] == target], reference)
        blocks += [(target, t, rows) for t, rows in averages.groupby("temperature", sort=False)]
    if not blocks:
        raise NotMeasured(f"none of {what} is finished in all suites")
    roles = list(dict.fromkeys(o["cell"]["role"] for o in cells))[::-1]
    unbounded = {o["cell"]["role"] for o in cells if o["cell"]["builder"] == "sampled_chain"}  # may exceed 1 + C_p
    places = {role: place for place, role in enumerate(roles)}
    figure, axes = grid(
        len(blocks), 2, (11.5, 1.0 + (0.75 + 0.36 * len(roles)) * len(blocks)), sharey=True, sharex="col"
    )
    for (target, temperature, rows), line in zip(blocks, axes, strict=True):
        for axis, metric in zip(line, ("tau", "speedup"), strict=True):
            of = rows[rows["metric"] == metric]
            for row in of.itertuples():
                place, colour = places[row.role], colour_of(row.role)
                axis.hlines(place, row.value_low, row.value_high, color=colour, linewidth=3, alpha=0.55)
                axis.plot(row.value, place, MARKERS.get(row.role, "o"), color=colour)
        ceiling = rows[(rows["metric"] == "ceiling") & ~rows["role"].isin(unbounded)]
        line[0].plot(ceiling["value"], ceiling["role"].map(places), "|", color=INK, markersize=15, markeredgewidth=1.6)
        line[1].axvline(1, color=MUTED, linewidth=1.2, linestyle=(0, (4, 2)))
        line[0].set_yticks(range(len(roles)), [plain(names.get(role, role)) for role in roles])
        line[0].set_ylim(-0.6, len(roles) - 0.4)
        line[0].set_title(f"T = {temperature:g}" + (f", {target}" if len(targets) > 1 else ""))
    axes[-1][0].set_xlabel("τ, tokens per round (bar: 95%, |: ceiling 1 + C_p)")
    axes[-1][1].set_xlabel("speed-up SR (bar: 95%; dashed: plain decoding)")
    return figure, hashes(whole(cells, ("target", "temperature", "role")))


def _interval(axis, x, rows: pd.DataFrame, colour: str, marker: str, label: str, line: str) -> None:
    axis.vlines(x, rows["value_low"], rows["value_high"], color=colour, linewidth=3, alpha=0.45)
    axis.plot(x, rows["value"], marker=marker, linestyle=line, color=colour, label=label)
