"""Shapes as SVG text and as PNG bytes."""

import io
import math
import warnings
from html import escape

from tevlib.explorer.drawing import Box, Curve, Drawing, Text

SANS = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"


def to_svg(drawing: Drawing, alt: str = "draft tree") -> str:
    """The drawing as one SVG document: no script, no style sheet, nothing fetched; every text escaped."""
    w, h = _n(drawing.width), _n(drawing.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        f'aria-label="{escape(alt)}">',
        f'<rect width="{w}" height="{h}" fill="{drawing.ground}"/>',
        *(_ELEMENT[type(shape)](shape) for shape in drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines)


def to_png(drawing: Drawing, scale: float = 2.0) -> bytes:
    """The drawing as PNG at `scale` pixels per unit; the same bytes for the same drawing and matplotlib version."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dpi = 72 * scale
    figure = Figure(figsize=(drawing.width / 72, drawing.height / 72), dpi=dpi, facecolor=drawing.ground)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.axis("off")
    for z, shape in enumerate(drawing.shapes):
        _ARTIST[type(shape)](axes, shape, z)
    out = io.BytesIO()
    with warnings.catch_warnings():  # matplotlib brings no East Asian glyphs and no emoji: it draws boxes for them
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(out, format="png", dpi=dpi, metadata={"Software": None}, facecolor=drawing.ground)
    return out.getvalue()


def _box(b: Box) -> str:
    dashes = ' stroke-dasharray="4 3"' if b.dashes else ""
    title = f"<title>{escape(b.title)}</title>" if b.title else ""
    return (
        f'<rect x="{_n(b.x)}" y="{_n(b.y)}" width="{_n(b.width)}" height="{_n(b.height)}" rx="{_n(b.radius)}" '
        f'fill="{b.fill}" stroke="{b.stroke}" stroke-width="{_n(b.stroke_width)}"{dashes}>{title}</rect>'
    )


def _curve(c: Curve) -> str:
    middle = _n((c.x + c.x_end) / 2)
    return (
        f'<path d="M{_n(c.x)} {_n(c.y)}C{middle} {_n(c.y)} {middle} {_n(c.y_end)} {_n(c.x_end)} {_n(c.y_end)}" '
        f'fill="none" stroke="{c.stroke}" stroke-width="{c.width:.2f}"/>'
    )


def _text(t: Text) -> str:
    anchor = ' text-anchor="end"' if t.end else ""
    weight = ' font-weight="600"' if t.bold else ""
    return (
        f'<text x="{_n(t.x)}" y="{_n(t.y)}" dy="0.35em" fill="{t.fill}" font-size="{_n(t.size)}" '
        f'font-family="{MONO if t.mono else SANS}"{anchor}{weight} xml:space="preserve">{escape(t.text)}</text>'
    )


def _draw_box(axes, b: Box, z: int) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (b.x, b.y), b.width, b.height, boxstyle=f"round,pad=0,rounding_size={b.radius}", facecolor=b.fill,
            edgecolor=b.stroke, linewidth=b.stroke_width, linestyle=(0, (3, 2)) if b.dashes else "-", zorder=z,
        )
    )  # fmt: skip


def _draw_curve(axes, c: Curve, z: int) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    middle = (c.x + c.x_end) / 2
    path = Path([(c.x, c.y), (middle, c.y), (middle, c.y_end), (c.x_end, c.y_end)], [1, 4, 4, 4])
    axes.add_patch(PathPatch(path, facecolor="none", edgecolor=c.stroke, linewidth=c.width, capstyle="butt", zorder=z))


def _draw_text(axes, t: Text, z: int) -> None:
    axes.text(
        t.x, t.y, t.text, color=t.fill, fontsize=t.size * 0.98, va="center_baseline", ha="right" if t.end else "left",
        weight="bold" if t.bold else "normal", family="DejaVu Sans Mono" if t.mono else "DejaVu Sans", zorder=z,
        parse_math=False,
    )  # fmt: skip


_ELEMENT = {Box: _box, Curve: _curve, Text: _text}
_ARTIST = {Box: _draw_box, Curve: _draw_curve, Text: _draw_text}


def _n(x: float) -> str:
    """A coordinate with at most one digit behind the point."""
    if not math.isfinite(x):
        raise ValueError(f"a coordinate must be finite; got {x}")
    return f"{x:.1f}".removesuffix(".0")
