"""A recorded tree as a list of shapes, which `svg.py` and `png.py` put on paper; the widget draws the same."""

from collections.abc import Mapping
from dataclasses import dataclass

from tevlib.explorer import colours
from tevlib.explorer.flow import Flow, flow
from tevlib.explorer.layout import BOX, GAP, MARGIN, PAD
from tevlib.explorer.scene import COLOUR_BY, layout_of

HEAD, FOOT = 64, 62  # above the tree: two lines of text; below: the legend
SMALLEST_WIDTH = 640
THINNEST, THICKEST = 1.2, 11.0  # edges: P = 0 and P = 1


@dataclass(frozen=True)
class Box:
    """A rounded box; `dashes` for what is no draft token."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str
    stroke_width: float
    dashes: bool = False
    radius: float = 6
    title: str = ""


@dataclass(frozen=True)
class Curve:
    """An edge: straight out of the box at (x, y), then an S to (x_end, y_end)."""

    x: float
    y: float
    x_end: float
    y_end: float
    stroke: str
    width: float


@dataclass(frozen=True)
class Text:
    """One line of text, its left (or right) end at x, centred on y."""

    x: float
    y: float
    text: str
    fill: str
    size: float = 13
    bold: bool = False
    mono: bool = False
    end: bool = False  # x is the right end


@dataclass(frozen=True)
class Drawing:
    """Shapes in painting order on a ground of `width` by `height` pixels."""

    width: float
    height: float
    ground: str
    shapes: list


def thickness(mass: float) -> float:
    """Width in pixels of the edge that `mass` runs through."""
    return THINNEST + (THICKEST - THINNEST) * mass


def values_of(found: Flow, tree: Mapping, by: str) -> list[float | None]:
    """What a node is coloured by: w, P, rho, draft (probability that the drafter gave the path) or mismatch."""
    if by not in COLOUR_BY:
        raise ValueError(f"colour by one of {', '.join(COLOUR_BY)}; got {by!r}")
    if by in ("w", "P", "rho"):
        return getattr(found, by)
    scores = tree["scores"] or []
    draft = [2.718281828459045 ** scores[v] if v < len(scores) else None for v in range(len(found.P))]
    if by == "draft":
        return draft
    return [None if q is None or P is None else q - P for q, P in zip(draft, found.P, strict=True)]


def fill_of(values: list[float | None], node: int, by: str, log: bool, ramps: Mapping, theme: str) -> str:
    """The fill of a node's box: `values` on the ramp of the theme; w is scaled to its largest value, the rest to 1."""
    value = values[node]
    if value is None:
        return ramps[theme][0]
    if by == "mismatch":
        return colours.colour(ramps[f"{theme}_diverging"], 0.5 - max(-1.0, min(1.0, value)) / 2)
    largest = max(x for x in values if x is not None) if by == "w" else 1.0
    return colours.colour(ramps[theme], colours.place(value, largest, log))


def draw_round(
    scene: Mapping,
    answer: int = 0,
    cycle: int = 0,
    tree: int = 0,
    *,
    by: str = "w",
    log: bool = False,
    theme: str = "light",
) -> Drawing:
    """The `Drawing` of one recorded tree at its own temperature: boxes, edges, accepted path, bonus, title, legend."""
    if theme not in ("light", "dark"):
        raise ValueError(f"theme must be light or dark; got {theme!r}")
    said, here = scene["answers"][answer], scene["answers"][answer]["rounds"][cycle]
    drawn, lead = here["trees"][tree], tree == 0
    place, palette = layout_of(drawn), colours.LIGHT if theme == "light" else colours.DARK
    accent = colours.ACCENT[theme]
    found = flow(drawn, said["temperature"], scene["temperatures"].index(said["temperature"]))
    path = here["path"] if lead else []
    label = {token: scene["short"].get(token, text) for token, text in scene["labels"].items()}

    shapes: list = []
    width, height = place.size
    width = max(width, SMALLEST_WIDTH)
    for node in sorted(range(1, len(drawn["tokens"])), key=lambda v: (v in path, -found.P[v])):
        x, y, across, _ = place.box(drawn["parents"][node])
        x_end, y_end, _, _ = place.box(node)
        stroke = accent if node in path else palette["edge"]
        shapes.append(
            Curve(x + across, y + HEAD + BOX / 2, x_end, y_end + HEAD + BOX / 2, stroke, thickness(found.P[node]))
        )
    values = values_of(found, drawn, by)
    for node, token in enumerate(drawn["tokens"]):
        x, y, across, tall = place.box(node)
        fill = fill_of(values, node, by, log, scene["ramps"], theme)
        ink = colours.readable_on(fill)
        ring = (accent, 2.6) if node in path else (palette["line"], 1)
        full = scene["labels"][str(token)]
        note = f"{full}  P {found.P[node]:.4f}  ρ {found.rho[node]:.4f}  w {found.w[node]:.4f}"
        shapes.append(Box(x, y + HEAD, across, tall, fill, *ring, title=note))
        shapes.append(Text(x + PAD, y + HEAD + BOX / 2, label[str(token)], ink, bold=True, mono=True))
        shapes.append(
            Text(x + across - PAD, y + HEAD + BOX / 2, number(values[node]), ink, size=11, mono=True, end=True)
        )
    if path:
        shapes += _bonus(place, path[-1], label[str(here["bonus"])], bool(_below(drawn, path[-1])), palette, accent)
    nodes = len(drawn["tokens"]) - 1
    shapes.append(
        Text(MARGIN, 24, f"{said['name']}, round {cycle + 1}: {drawn['name']}", palette["ink"], 15, bold=True)
    )
    identity = (
        f"{nodes} draft tokens, T = {said['temperature']:g}   Σw = {sum(found.w):.3f}   C_p = {found.coverage:.3f}"
    )
    identity += f"   ceiling 1 + C_p = {1 + found.coverage:.3f}"
    identity += f"   this draw: {len(path)} tokens" if path else ""
    shapes.append(Text(MARGIN, 48, identity, palette["muted"], 12.5))
    shapes += _legend(HEAD + height, values, by, log, scene["ramps"], theme, palette, accent)
    return Drawing(width, height + HEAD + FOOT, palette["ground"], shapes)


def number(value: float | None) -> str:
    """A value in the four characters that a box has room for; a dot for what rounds to nothing."""
    if value is None:
        return ""
    if abs(value) < 0.005:
        return "·"
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.1f}"


def _below(tree: Mapping, node: int) -> list[int]:
    return [child for child, parent in enumerate(tree["parents"]) if parent == node and child]


def _bonus(place, node: int, label: str, hangs: bool, palette: Mapping, accent: str) -> list:
    """The chip of the bonus token in the gap behind its exit node: in its row at a leaf, half a row lower otherwise."""
    x, y, across, _ = place.box(node)
    text = label if len(label) <= 8 else label[:7] + "…"
    top = y + HEAD + (18 if hangs else 3)
    left = x + across + 8
    return [
        Curve(x + across, y + HEAD + BOX / 2, left, top + 9, accent, 2),
        Box(left, top, GAP - 14, 18, palette["ground"], accent, 1.6, dashes=True, radius=9, title=f"bonus {label}"),
        Text(left + 7, top + 9, text, accent, 11, bold=True, mono=True),
    ]


def _legend(top: float, values, by: str, log: bool, ramps: Mapping, theme: str, palette: Mapping, accent: str) -> list:
    """Two lines that say what shade, thickness, ring and dashes mean."""
    ramp = ramps[f"{theme}_diverging"][::-1] if by == "mismatch" else ramps[theme]
    largest = max((x for x in values if x is not None), default=1.0) if by == "w" else 1.0
    low = "-1" if by == "mismatch" else "0.0001" if log else "0"
    bar, y = MARGIN + 7.0 * len(low), top + 8
    cells = 50
    shapes: list = [Text(MARGIN, y, low, palette["muted"], 11)]
    for i in range(cells):
        fill = ramp[i * colours.STEPS // (cells - 1)]
        shapes.append(Box(bar + 3 * i, y - 6, 3.2, 12, fill, fill, 0, radius=0))
    scale = ", logarithmic" if log and by != "mismatch" else ""
    shapes.append(
        Text(bar + 3 * cells + 8, y, f"{largest:.2f}   shade and number: {COLOUR_BY[by]}{scale}", palette["muted"], 11)
    )
    y += 24
    entries = (("as thick as P(v)", palette["edge"], 8.0), ("accepted", accent, 4.0))
    x = float(MARGIN)
    for text, stroke, width in entries:
        shapes.append(Curve(x, y, x + 26, y, stroke, width))
        shapes.append(Text(x + 34, y, text, palette["muted"], 11))
        x += 60 + 6.5 * len(text)
    shapes.append(Box(x, y - 8, 26, 16, palette["ground"], accent, 1.6, dashes=True, radius=8))
    shapes.append(Text(x + 34, y, "bonus token", palette["muted"], 11))
    return shapes
