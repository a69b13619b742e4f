"""The course's two diagrams: exits that were played beside the exit law, and both sides of Eq. 55."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

BARS, INK = "#D9D9D9", "#222222"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # apart for all eyes; the marks' shapes say the same
MARKS = ("o", "s", "^", "D")
SIZE = 12  # points: what a projector needs; nothing is smaller than 11
LEAST = 1e-5  # smallest probability of the logarithmic axes


def draw_exits(labels: Sequence[str], w: Tensor, played: Mapping[str, Tensor], title: str = "", most: int = 12):
    """A matplotlib figure: the exit law `w` [N] as bars, and where each of `played` ({name: counts [N]}) left the tree.

    Marks are shares of all plays, with two standard errors under the law on both sides: about 1 in 20 misses its bar.
    Only the `most` nodes of largest w have a place of their own, in the order of w; the others share one. Raises
    ValueError where sizes do not fit, for a name without plays, and for more than four names.
    """
    if len(labels) != len(w) or any(counts.shape != w.shape for counts in played.values()):
        raise ValueError(f"labels, w and counts must have one length; got {len(labels)} labels and w {tuple(w.shape)}")
    if any(float(counts.sum()) == 0 for counts in played.values()):
        raise ValueError(
            f"every verifier needs plays; got {[name for name in played if float(played[name].sum()) == 0]}"
        )
    if len(played) > len(MARKS):
        raise ValueError(f"at most {len(MARKS)} sets of plays can be told apart; got {len(played)}")
    import matplotlib.pyplot as plt

    order = w.argsort(descending=True, stable=True)
    shown, rest = order[:most], order[most:]
    names = [labels[int(node)] for node in shown] + ([f"{len(rest)} others"] if len(rest) else [])
    bars = _grouped(w, shown, rest)
    figure, axes = plt.subplots(
        figsize=(max(6.5, 0.62 * len(names) + 2.2), 4.2), facecolor="white", layout="constrained"
    )
    places = np.arange(len(names))
    axes.bar(places, bars.numpy(), width=0.86, color=BARS, edgecolor="#8C8C8C", label="exit law w(v)")
    for i, (name, counts) in enumerate(played.items()):
        plays = float(counts.sum())
        share = _grouped(counts.double() / plays, shown, rest)
        error = 2 * (bars * (1 - bars).clamp(min=0) / plays).sqrt()
        look = {"fmt": MARKS[i], "color": COLOURS[i], "markersize": 7, "capsize": 3, "elinewidth": 1.6}
        beside = 0.22 * (i - (len(played) - 1) / 2)
        axes.errorbar(places + beside, share.numpy(), error.numpy(), label=f"{name}, n = {int(plays):,}", **look)
    axes.set_xticks(places, names, rotation=40, ha="right", fontsize=SIZE, family="monospace", parse_math=False)
    axes.set_ylabel("probability", fontsize=SIZE)
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=SIZE + 1, loc="left", color=INK, parse_math=False)
    axes.legend(fontsize=SIZE - 1, frameon=False)
    _plain(axes)
    return figure


def draw_two_sides(chains: Sequence[str], sides: Tensor, drawn: Tensor, real: Tensor, titles: tuple[str, str]):
    """A matplotlib figure of Eq. 55: a toy's chains at the left, chains of a real drafter at the right.

    sides: [C, 2] left and right side for each of the toy's `chains`; drawn: [C] their probability under q. real:
    [2, n, K] both sides for each of n real chains, cut after 1 to K tokens: one mark each, on the diagonal where both
    sides are equal and above it where judging jointly accepts more. Sides below `LEAST` are drawn at the edge. Raises
    ValueError for shapes that do not fit.
    """
    if sides.shape != (len(chains), 2) or drawn.shape != (len(chains),) or real.ndim != 3 or len(real) != 2:
        shapes = [tuple(part.shape) for part in (sides, drawn, real)]
        raise ValueError(f"sides, drawn and real do not fit {len(chains)} chains: {shapes}")
    import matplotlib.pyplot as plt

    figure, (bars, dots) = plt.subplots(1, 2, figsize=(11, 4.6), facecolor="white", layout="constrained")
    places = np.arange(len(chains))
    names = ("place by place: product of min(1, r)", "jointly: min(1, product of r)")
    for i, hatch in enumerate(("", "//")):
        look = {"color": COLOURS[i], "edgecolor": "white", "hatch": hatch, "label": names[i]}
        bars.bar(places + 0.38 * (i - 0.5), sides[:, i].numpy(), width=0.36, **look)
    labels = [f"{chain}\nq = {q:.2f}" for chain, q in zip(chains, drawn.tolist(), strict=True)]
    bars.set_xticks(places, labels, fontsize=SIZE)
    bars.set_ylim(0, 1.35)
    bars.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    bars.set_ylabel("Pr(whole chain accepted)", fontsize=SIZE)

    dots.plot([LEAST, 1], [LEAST, 1], color="#8C8C8C", linewidth=1.2, zorder=1)
    left, right = real.clamp(min=LEAST).numpy()
    for k in range(min(real.shape[-1], len(MARKS))):
        look = {
            "color": COLOURS[k],
            "alpha": 0.75,
            "markersize": 7,
            "label": f"cut after {k + 1} token{'s' if k else ''}",
        }
        dots.plot(left[:, k], right[:, k], MARKS[k], clip_on=False, **look)
    dots.set(xscale="log", yscale="log", xlim=(LEAST, 1.4), ylim=(LEAST, 1.4))
    dots.set_xlabel("product of min(1, r)", fontsize=SIZE)
    dots.set_ylabel("min(1, product of r)", fontsize=SIZE)
    for axes, title, place in zip((bars, dots), titles, ("upper right", "lower right"), strict=True):
        axes.set_title(title, fontsize=SIZE + 1, loc="left", color=INK, parse_math=False)
        axes.legend(fontsize=SIZE - 1, frameon=False, loc=place)
        _plain(axes)
    return figure


def _grouped(values: Tensor, shown: Tensor, rest: Tensor) -> Tensor:
    """`values` at the shown nodes, and where there are others the sum over them."""
    values = values.double()
    return torch.cat([values[shown], values[rest].sum().view(1)]) if len(rest) else values[shown]


def _plain(axes) -> None:
    axes.tick_params(labelsize=SIZE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.grid(True, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
