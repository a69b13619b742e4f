"""The course's diagrams show the numbers they are given, and the chi-square test is one."""

import math

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.text import Text

from tevlib.course.fit import chi_square
from tevlib.course.pictures import LEAST, draw_exits, draw_two_sides


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def inside(figure):
    """Every text of the figure lies inside it and is large enough for a projector."""
    renderer = figure.canvas.get_renderer()
    figure.canvas.draw()
    out_of_view = set()  # labels of ticks beyond the limits exist and are not drawn
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        out_of_view |= {label for t in ticks if not low <= t.get_loc() <= high for label in (t.label1, t.label2)}
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    texts = [text for text in texts if text not in out_of_view]
    assert len(texts) > 8
    for text in texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text
        assert text.get_fontsize() >= 11


def test_exits_show_law_and_shares():
    """Bars are w in falling order with the rest summed up; marks are counts over plays; dollars are no formulas."""
    w = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])
    counts = torch.tensor([10, 45, 0, 30, 15])
    figure = draw_exits(["root", "␣a", "$b$", "\\n", "long label of a node"], w, {"tev": counts}, "Title", most=3)
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.4, 0.3, 0.15, 0.15])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["␣a", "\\n", "long label of a node", "2 others"]
    marks = axes.containers[1].lines[0]
    assert list(marks.get_ydata()) == pytest.approx([0.45, 0.3, 0.15, 0.1])
    assert "tev, n = 100" in [text.get_text() for text in axes.get_legend().get_texts()]
    inside(figure)


def test_two_sides_show_every_chain():
    """Bars are the toy's sides, marks the real chains' at every length, below the axis' end at its edge."""
    sides = torch.tensor([[0.5, 0.8], [1.0, 1.0]])
    real = torch.tensor([[[0.5, 0.1], [1.0, 1e-9]], [[0.5, 0.3], [1.0, 1e-9]]])
    figure = draw_two_sides(["aa", "ab"], sides, torch.tensor([0.25, 0.75]), real, ("Toy", "Real"))
    bars, dots = figure.axes
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([0.5, 1.0, 0.8, 1.0])
    drawn = [(*line.get_xdata(), *line.get_ydata()) for line in dots.lines[1:]]
    assert drawn == [pytest.approx([0.5, 1, 0.5, 1]), pytest.approx([0.1, LEAST, 0.3, LEAST])]
    inside(figure)


def test_bad_input_is_refused():
    """Sizes that do not fit, a verifier without plays, more verifiers than marks."""
    w = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match="one length"):
        draw_exits(["a"], w, {})
    with pytest.raises(ValueError, match="needs plays"):
        draw_exits(["a", "b"], w, {"tev": torch.zeros(2)})
    with pytest.raises(ValueError, match="at most 4"):
        draw_exits(["a", "b"], w, {str(i): torch.ones(2) for i in range(5)})
    with pytest.raises(ValueError, match="do not fit 1 chains"):
        draw_two_sides(["a"], torch.ones(2, 2), torch.ones(1), torch.ones(2, 1, 1), ("", ""))


def test_chi_square_by_hand():
    """(18 - 20)^2 / 20 + (32 - 30)^2 / 30 with one degree of freedom; its p-value is erfc of the root of half of it."""
    fit = chi_square(torch.tensor([18, 32]), torch.tensor([0.4, 0.6]))
    assert fit.statistic == pytest.approx(4 / 20 + 4 / 30) and fit.freedom == 1
    assert fit.p == pytest.approx(math.erfc(math.sqrt(fit.statistic / 2)))


def test_rare_outcomes_are_taken_together():
    """Groups hold at least five expected counts, impossible outcomes are worth p = 0, one group is no test."""
    law = torch.tensor([0.9, 0.04, 0.03, 0.02, 0.01])
    fit = chi_square(torch.tensor([90, 4, 3, 2, 1]), law)
    assert (fit.freedom, fit.statistic) == (1, pytest.approx(0, abs=1e-9))
    assert chi_square(torch.tensor([9, 1]), torch.tensor([1.0, 0.0])).p == 0
    assert chi_square(torch.tensor([9, 0]), torch.tensor([1.0, 0.0])).p == 1
    with pytest.raises(ValueError, match="at least one count"):
        chi_square(torch.zeros(2), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="one length"):
        chi_square(torch.ones(3), torch.tensor([0.5, 0.5]))


def test_chi_square_p_values_are_uniform_under_the_law():
    """Of 300 samples of the law about 30 have p < 0.1; of samples of another law nearly all."""
    generator = torch.Generator().manual_seed(0)
    law, other = torch.tensor([0.4, 0.3, 0.2, 0.05, 0.03, 0.02]), torch.tensor([0.3, 0.4, 0.2, 0.05, 0.03, 0.02])

    def small(sampled):
        draws = torch.multinomial(sampled.expand(300, -1), 200, replacement=True, generator=generator)
        return sum(chi_square(torch.bincount(row, minlength=6), law).p < 0.1 for row in draws)

    assert 12 <= small(law) <= 50 and small(other) > 200
