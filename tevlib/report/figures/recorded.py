"""Figures 1 and 2 of the paper, drawn from real rounds: trees, target flow, exits and blocks as they were recorded."""

from collections.abc import Mapping, Sequence

from tevlib.report.figures.rounds import BASE, EXIT, ROUNDS, Round, child_tests, read
from tevlib.report.figures.style import BLUE, GREEN, GREY, INK, MUTED, SKY, VERMILION
from tevlib.report.figures.tree import GAP, Node, Places, canvas, draw, places, write

OMITTED = 0.035  # target mass from which a candidate that the tree has not is drawn


def fixed_tree(outcomes: Sequence[Mapping] = (), budget: int = 9):
    """Figure 2, and its source: the tree of a recorded round with P, rho and w at every node, accepted path, bonus."""
    recording, source = read(ROUNDS)
    cycle = Round(recording, 1, 0, BASE, budget)
    law = cycle.flow
    look = {v: "exit" if v == cycle.path[-1] else "new" if v in cycle.path else "kept" for v in cycle.nodes}
    notes = [f"P{_two(law.P[v])} ρ{_two(law.rho[v])} w{_two(law.w[v])}" for v in cycle.nodes]
    nodes = [Node(cycle.node_label(v), law.parents[v], law.P[v], notes[v], look[v]) for v in cycle.nodes]
    at = places(nodes, two_lines=True)
    width, height = at.size
    figure, axes, scale = canvas(width + 180, height + 158, 13.5)
    left, top = 30, 88
    write(
        axes, left, 26, f"A fixed draft tree of {budget} tokens: {cycle.prompt}, first round", scale, size=19, bold=True
    )
    said = f"Σ w(v) = {sum(law.w[: budget + 1]):.2f}    C_p = Σ P(v) = Σ w(v)·depth(v) = {law.coverage:.2f}    "
    said += f"mean block of any exact verifier ≤ 1 + C_p = {1 + law.coverage:.2f}    T = {cycle.temperature:g}"
    write(axes, left, 56, said, scale, MUTED, size=14.5)
    draw(axes, nodes, at, scale, left, top)
    x, y, w, h = at.box(cycle.path[-1])
    _bonus(axes, x + w + left, y + h / 2 + top, cycle.bonus, scale)
    y = top + height + 34
    keys = (("flow", "target flow, as thick as P(v)"), ("new", "accepted path"), ("exit", "exit node of this text"),
            ("bonus", "bonus token"))  # fmt: skip
    _keys(axes, left, y, keys, scale)
    return figure, [source]


def three_contributions(outcomes: Sequence[Mapping] = (), budget: int = 8):
    """Figure 1, and its sources: what a tree misses (a), three verifiers, one law (b), ExitTrain's other tree (c)."""
    recording, source = read(ROUNDS)
    before, after = (Round(recording, 2, 0, tree, budget) for tree in (BASE, EXIT))
    worst = max(before.nodes, key=lambda v: before.flow.w[v])
    missed, gained = _with_omitted(before), _both(before, after)
    tree = Round(recording, 1, 0, BASE, 9)
    law = [Node(tree.node_label(v), tree.flow.parents[v], tree.flow.P[v], _two(tree.flow.w[v]),
                "exit" if v == tree.path[-1] else "kept") for v in tree.nodes]  # fmt: skip
    at = [places(nodes) for nodes in (missed, law, gained)]
    left, right = max(at[0].size[0], at[2].size[0], 470), max(at[1].size[0] + 110, 900)
    width, x = left + right + 110, left + 80
    upper = 84 + at[0].size[1] + 44
    height = upper + 84 + at[2].size[1] + 56
    figure, axes, scale = canvas(width, height, 16)
    axes.plot([left + 52] * 2, [24, height - 24], color="#D5DBE3", linewidth=1)
    _panel(axes, 26, 0, scale, f"(a) {budget} draft tokens, chosen by the drafter",
           f"C_p = {before.flow.coverage:.2f}, mean block ≤ {1 + before.flow.coverage:.2f}; "
           f"{before.flow.w[worst]:.2f} leaves at “{before.node_label(worst)}”")  # fmt: skip
    draw(axes, missed, at[0], scale, 26, 84)
    change = after.flow.coverage - before.flow.coverage
    _panel(axes, 26, upper, scale, f"(c) {budget} draft tokens after ExitTrain, same context",
           f"C_p = {after.flow.coverage:.2f} ({change:+.2f}): budget moved to where mass left")  # fmt: skip
    draw(axes, gained, at[2], scale, 26, upper + 84)
    _panel(axes, x, 0, scale, "(b) A fixed tree: three exact verifiers, one law",
           f"number: w(v); C_p = {tree.flow.coverage:.2f}, so every one of them has the mean block "
           f"{1 + tree.flow.coverage:.2f}")  # fmt: skip
    draw(axes, law, at[1], scale, x, 84)
    box = at[1].box(tree.path[-1])
    _bonus(axes, x + box[0] + box[2], 84 + box[1] + box[3] / 2, tree.bonus, scale)
    _verifiers(axes, tree, x, 84 + at[1].size[1] + 54, right - 10, scale)
    keys = (("kept", "selected"), ("omitted", "omitted"), ("new", "new"), ("flow", "target flow P(v)"))
    _keys(axes, 26, height - 24, keys, scale)
    return figure, [source]


def _with_omitted(cycle: Round) -> list[Node]:
    """The tree's boxes, noted with P, and behind them the likeliest candidates that it has not."""
    nodes = [
        Node(cycle.node_label(v), cycle.flow.parents[v], cycle.flow.P[v], _two(cycle.flow.P[v])) for v in cycle.nodes
    ]
    for v in cycle.nodes:
        nodes += [Node(label, v, gain, _two(gain), "omitted") for label, gain in cycle.missing(v)[:2] if gain > OMITTED]
    return nodes


def _both(before: Round, after: Round) -> list[Node]:
    """Boxes of `after`, green where `before` had none, then those of `before` that went, dashed; all noted with P."""
    had, has = _prefixes(before), _prefixes(after)
    order = [*has, *(prefix for prefix in had if prefix not in has)]
    place = {prefix: i for i, prefix in enumerate(order)}
    nodes = []
    for prefix in order:
        cycle, v = (after, has[prefix]) if prefix in has else (before, had[prefix])
        look = "kept" if prefix in had and prefix in has else "new" if prefix in has else "omitted"
        parent = place[prefix[:-1]] if prefix else -1
        nodes.append(Node(cycle.node_label(v), parent, cycle.flow.P[v], _two(cycle.flow.P[v]), look))
    return nodes


def _prefixes(cycle: Round) -> dict[tuple[int, ...], int]:
    """Nodes by the tokens that lead to them."""
    found: dict[tuple[int, ...], int] = {(): 0}
    prefix: dict[int, tuple[int, ...]] = {0: ()}
    for v in cycle.nodes[1:]:
        prefix[v] = (*prefix[cycle.flow.parents[v]], cycle.flow.tokens[v])
        found[prefix[v]] = v
    return found


def _verifiers(axes, cycle: Round, x: float, y: float, width: float, scale: float) -> None:
    """Three lines below the tree: what each verifier draws or tests for the recorded text."""
    exit_node, step = cycle.path[-1], 136
    count = len(cycle.nodes)
    _step(
        axes,
        x,
        y,
        scale,
        "Predraw and follow",
        f"{count} draws, one at every node; follow those that match a child",
        BLUE,
    )
    wide = min(58.0, (width - 8) / count - 8)
    for i, v in enumerate(cycle.nodes):
        on = v in cycle.path
        _chip(axes, x + i * (wide + 8), y + 28, wide, cycle.node_label(v), BLUE if on else GREY, on, scale)
    tests = child_tests(cycle)
    y += step
    _step(
        axes,
        x,
        y,
        scale,
        "Sequential residual",
        f"{len(tests)} tests, child by child, then 1 draw from what is left",
        BLUE,
    )
    wide = min(92.0, width / len(tests) - 8)
    for i, (label, accepted) in enumerate(tests):
        _chip(
            axes,
            x + i * (wide + 8),
            y + 28,
            wide,
            f"{'✓' if accepted else '✗'} {label}",
            GREEN if accepted else GREY,
            accepted,
            scale,
        )
    y += step
    _step(
        axes,
        x,
        y,
        scale,
        "TEV",
        "1 draw of the exit node from w, then 1 draw of the bonus from what that node lacks",
        VERMILION,
    )
    order = sorted(cycle.nodes, key=lambda v: -cycle.flow.w[v])
    _strip(axes, x, y + 28, width, [(cycle.node_label(v), cycle.flow.w[v], v == exit_node) for v in order], "w", scale)
    mass = cycle.flow.w[exit_node]
    lacks = [(label, gain / mass) for label, gain in cycle.missing(exit_node)]
    parts = [(label, share, label == cycle.bonus) for label, share in lacks if share > 0.004]
    rest = max(0.0, 1 - sum(share for _, share, _ in parts))
    _strip(axes, x, y + 82, width, [*parts, ("…", rest, False)], "p_res", scale)
    said = f"On this text each stops at “{cycle.node_label(exit_node)}” with the bonus “{cycle.bonus}”: "
    write(axes, x, y + 158, said + f"a block of {len(cycle.path)} tokens.", scale, size=14.5)


def _strip(axes, x, y, width, parts: Sequence[tuple[str, float, bool]], name: str, scale: float) -> None:
    """A unit of probability as a strip: one piece per entry, the drawn one vermilion, labels where there is room."""
    from matplotlib.patches import Rectangle

    write(axes, x, y + 17, name, scale, MUTED, size=12, mono=True)
    x, width = x + 50, width - 50
    for label, share, drawn in parts:
        piece = share * width
        colour = VERMILION if drawn else SKY
        axes.add_patch(Rectangle((x, y), piece, 34, facecolor=colour, edgecolor="white", linewidth=1.5, zorder=2))
        text = f"{label} {_two(share)}"
        if 7.6 * len(text) < piece - 8:
            write(
                axes,
                x + piece / 2,
                y + 17,
                text,
                scale,
                "white" if drawn else INK,
                size=12,
                mono=True,
                ha="center",
                bold=drawn,
            )
        if drawn:
            axes.plot([x + piece / 2] * 2, [y + 34, y + 46], color=VERMILION, linewidth=2)
        x += piece


def _panel(axes, x, y, scale, title: str, text: str) -> None:
    write(axes, x, y + 28, title, scale, size=18, bold=True)
    write(axes, x, y + 56, text, scale, MUTED, size=14)


def _step(axes, x, y, scale, name: str, text: str, colour: str) -> None:
    write(axes, x, y, name, scale, colour, size=15, bold=True)
    write(axes, x + 10.5 * len(name) + 12, y, text, scale, MUTED, size=13.5)


def _chip(axes, x, y, width, label: str, colour: str, strong: bool, scale: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(FancyBboxPatch((x, y), width, 26, boxstyle="round,pad=0,rounding_size=6", facecolor="white",
                                  edgecolor=colour, linewidth=2.2 if strong else 1.2, zorder=2))  # fmt: skip
    room = max(int((width - 8) / 7.4), 1)
    text = label if len(label) <= room else label[: room - 1] + "…"
    write(axes, x + width / 2, y + 13, text, scale, INK if strong else MUTED, size=12, mono=True, ha="center")


def _bonus(axes, x, y, label: str, scale: float) -> None:
    """The bonus token, dashed, behind its exit node."""
    axes.plot([x, x + GAP / 2], [y, y], color=VERMILION, linewidth=2, linestyle=(0, (2, 1)))
    _pill(axes, x + GAP / 2, y, 8.2 * len(label) + 18, 26, scale)
    write(axes, x + GAP / 2 + 9, y, label, scale, VERMILION, mono=True, bold=True)


def _pill(axes, x, y, width, height, scale) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = f"round,pad=0,rounding_size={height / 2 - 1}"
    look = {"facecolor": "white", "edgecolor": VERMILION, "linewidth": 2.8 * scale, "linestyle": (0, (2, 1))}
    axes.add_patch(FancyBboxPatch((x, y - height / 2), width, height, boxstyle=corner, zorder=2, **look))


def _keys(axes, x, y, keys: Sequence[tuple[str, str]], scale: float) -> None:
    """A legend in one line: a piece of flow, a bonus token, or a box in one of the looks, and what it means."""
    for form, text in keys:
        if form == "flow":
            axes.plot([x, x + 30], [y, y], color=VERMILION, linewidth=8 * scale, alpha=0.55, solid_capstyle="butt")
        elif form == "bonus":
            _pill(axes, x, y, 30, 18, scale)
        else:
            draw(axes, [Node("", -1, 1, "", form)], Places([0], [0], [0], [30], 0, 18), scale, x, y - 9)
        write(axes, x + 38, y, text, scale, MUTED, size=12.5)
        x += 64 + 7.0 * len(text)


def _two(value: float) -> str:
    """Two digits behind the point without the leading 0, three characters in all."""
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1.0"
