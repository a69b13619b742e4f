"""Colours of the explorer: perceptually even ramps for light and dark grounds, safe for colour-blind eyes.

Ramps go through OKLab, in which equal distances look equal. Sequential ones change lightness all the way, so they
survive greyscale and every kind of colour blindness; the diverging one is purple against green.
"""

import itertools
import math

STEPS = 100  # a ramp has STEPS + 1 colours
SMALLEST = 1e-4  # where the logarithmic scale starts

LIGHT = {"ground": "#ffffff", "ink": "#1d2430", "muted": "#5d6878", "line": "#b3bcc9", "edge": "#9fb0c6"}
DARK = {"ground": "#12161d", "ink": "#e8edf5", "muted": "#9aa7ba", "line": "#414c5e", "edge": "#50627c"}
ACCENT = {"light": "#d1480b", "dark": "#ff8a4c"}  # vermilion: the accepted path


def place(value: float, largest: float, log: bool) -> float:
    """Where in 0..1 of a sequential ramp `value` lies: linear from 0 to `largest`, or logarithmic from `SMALLEST`."""
    if largest <= SMALLEST:
        return 0.0
    if not log:
        return min(max(value / largest, 0.0), 1.0)
    if value <= SMALLEST:
        return 0.0
    return min(math.log(value / SMALLEST) / math.log(largest / SMALLEST), 1.0)


def colour(ramp: list[str], t: float) -> str:
    """The colour at `t` in 0..1 of a ramp."""
    return ramp[math.floor(t * STEPS + 0.5)]


def ramps() -> dict[str, list[str]]:
    """The four ramps as lists of `#rrggbb`: `light` and `dark` (sequential), `light_diverging`, `dark_diverging`."""
    return {
        "light": _even([(0.985, 0.012, 240), (0.86, 0.075, 215), (0.62, 0.115, 245), (0.30, 0.10, 268)]),
        "dark": _even([(0.26, 0.025, 262), (0.45, 0.10, 255), (0.70, 0.115, 215), (0.95, 0.055, 170)]),
        "light_diverging": _diverging([(0.42, 0.15, 305), (0.975, 0.004, 280), (0.42, 0.10, 150)]),
        "dark_diverging": _diverging([(0.78, 0.14, 305), (0.27, 0.015, 262), (0.80, 0.14, 150)]),
    }


def readable_on(fill: str) -> str:
    """Black or white ink, whichever contrasts more with `fill`."""
    return "#000000" if luminance(fill) > 0.179 else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance 0..1 of `#rrggbb` (WCAG)."""
    r, g, b = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def oklab(colour: str) -> tuple[float, float, float]:
    """OKLab coordinates of `#rrggbb`."""
    r, g, b = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    medium = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    small = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * small,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * small,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * small,
    )


def _diverging(anchors: list[tuple[float, float, float]]) -> list[str]:
    """Two even arms that meet in the middle one of three anchors."""
    end, middle, other = anchors
    return _even([end, middle], STEPS // 2)[:-1] + _even([middle, other], STEPS // 2)


def _even(anchors: list[tuple[float, float, float]], steps: int = STEPS) -> list[str]:
    """`steps` + 1 colours at equal OKLab distances on the line through OKLCh `anchors` (lightness, chroma, degrees)."""
    corners = [(L, c * math.cos(math.radians(h)), c * math.sin(math.radians(h))) for L, c, h in anchors]
    lengths = [math.dist(a, b) for a, b in itertools.pairwise(corners)]
    found = []
    for step in range(steps + 1):
        left = sum(lengths) * step / steps
        segment = 0
        while segment < len(lengths) - 1 and left > lengths[segment]:
            left -= lengths[segment]
            segment += 1
        t = min(left / lengths[segment], 1.0)
        start, end = corners[segment], corners[segment + 1]
        found.append(_hex([a + t * (b - a) for a, b in zip(start, end, strict=True)]))
    return found


def _hex(lab: list[float]) -> str:
    lightness, a, b = lab
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    small = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * small,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * small,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * small,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(x, 0.0), 1.0))):02x}" for x in linear)


def _gamma(x: float) -> float:
    return 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055


def _linear(x: float) -> float:
    return x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
