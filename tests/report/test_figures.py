"""Figures from records: the same bytes twice, named sources, honest gaps, and what they show is what records say."""

import json
import re

import pytest

from tevlib.report.figures import measured, rows
from tevlib.report.figures.cells import NotMeasured
from tevlib.report.figures.draw import FIGURES, draw_figure, draw_figures
from tevlib.report.figures.rounds import BASE, ROUNDS, Round, child_tests, mean_change, read
from tevlib.report.figures.style import FORMATS, ROLES, save_figure
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome


@pytest.fixture
def outcomes(reported, monkeypatch):
    """The outcomes of the tiny profile, all finished."""
    home, profile = reported
    monkeypatch.setenv("TEVLIB_HOME", str(home))
    return [outcome(cell) for cell in load_profile(profile)]


def test_every_figure_is_drawn_and_a_second_time_with_the_same_bytes(outcomes, tmp_path):
    """PDF, SVG, PNG and JSON of all figures; drawn again from the same records no byte differs (no date, no salt)."""
    first, again = (draw_figures(outcomes, "tiny.yaml", tmp_path / name) for name in ("one", "two"))
    assert [figure.name for figure in first] == list(FIGURES) and all(figure.paths for figure in first)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == len(FIGURES) * (len(FORMATS) + 1)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert [figure.caption for figure in first] == [figure.caption for figure in again]


def test_sources_are_named_and_are_the_records_shown(outcomes, tmp_path):
    """The JSON of a figure names records that exist, of its own tables only, or the recording with its digest."""
    of_table = {}
    for o in outcomes:
        of_table.setdefault(o["hash"], set()).add(o["cell"]["table"])
    for name in ("budgets", "latency", "audit", "figure2"):
        figure = draw_figure(name, outcomes, "tiny.yaml", tmp_path)
        told = json.loads(figure.paths["json"].read_text())
        assert told["caption"] == figure.caption and told["sources"]
        if FIGURES[name].tables:
            assert all(of_table[source] & set(FIGURES[name].tables) for source in told["sources"])
        else:
            assert re.fullmatch(re.escape(ROUNDS) + " sha256:[0-9a-f]{64}", told["sources"][0])
    with pytest.raises(ValueError, match="names no source"):
        save_figure(None, "empty", tmp_path, "", [])


def test_missing_records_are_said_and_nothing_is_drawn(outcomes, tmp_path):
    """Without a record there is no file and no empty axis: the reason and the command that fills the gap instead."""
    nothing = [{"status": "not run", "cell": o["cell"], "error": None} for o in outcomes]
    drawn = {figure.name: figure for figure in draw_figures(nothing, "my profile.yaml", tmp_path)}
    assert {name for name, figure in drawn.items() if figure.paths} == {"figure1", "figure2"}  # these are recordings
    assert {path.stem for path in tmp_path.iterdir()} == {"figure1", "figure2"}
    gap = drawn["budgets"]
    assert gap.why and gap.command == "python -m tevlib run --profile 'my profile.yaml' --tables 5"
    absent = draw_figure("latency", [o for o in nothing if o["cell"]["table"] != "table3"], "p.yaml", tmp_path)
    assert "plans none of table3" in absent.why and absent.paths is None
    assert absent.command == "python -m tevlib run --profile laptop --tables 3"  # that profile could not run it


def test_a_row_with_a_failed_cell_is_left_out(outcomes, tmp_path):
    """A mean over suites of which one failed is no mean: the row is not drawn, the others are."""
    cells = [o for o in outcomes if o["cell"]["table"] == "table5"]
    failed = next(o for o in cells if (o["cell"]["role"], o["cell"]["temperature"]) == ("exit", 1.0))
    some = [{"status": "failed", "cell": o["cell"], "error": "boom"} if o is failed else o for o in cells]
    figure, sources = rows.budgets(some)
    assert failed["hash"] not in sources and len(sources) == len(rows.budgets(cells)[1]) - 1
    points = [len(line.get_xdata()) for line in figure.axes[1].lines]
    assert sorted(points)[:1] == [1] and figure.axes[1].get_title(loc="left") == "T = 1"


def test_records_without_the_new_fields_are_not_drawn_as_zero(outcomes):
    """Records of older code, without exits or the oracle, give no figure rather than an empty one."""
    old = [
        o | {"metrics": {k: v for k, v in o["metrics"].items() if k not in ("exits", "oracle_share")}} for o in outcomes
    ]
    for draw in (measured.exits, measured.oracle):
        with pytest.raises(NotMeasured):
            draw(old)


def test_answers_without_a_round_do_not_break_a_figure(outcomes):
    """A finished cell whose answers all stopped at once has no numbers: its row is left out, or the figure says so."""
    empty = [
        o | {"metrics": dict.fromkeys(o["metrics"]), "responses": [row | {"rounds": 0} for row in o["responses"]]}
        if o["cell"]["table"] != "table3" and o["cell"]["temperature"] == 1.0
        else o
        for o in outcomes
    ]
    assert measured.exits(empty)[1] == measured.exits([o for o in empty if o["metrics"].get("tau")])[1]
    with pytest.raises(NotMeasured):
        measured.stages(empty)
    assert len(measured.audit(empty)[1]) < len(measured.audit(outcomes)[1])
    rows.budgets(empty)


def test_exits_show_the_exit_law(outcomes):
    """Bars of one drafter sum to 1, and their mean depth is the C_p of its ceilings (Eqs. 5 and 6)."""
    figure, _ = measured.exits(outcomes)
    axis = figure.axes[-1]
    cells = [o for o in outcomes if o["cell"]["table"] == "table2" and o["cell"]["temperature"] == 1.0]
    for container, role in zip(axis.containers, ("original", "exit"), strict=True):
        w = [bar.get_height() for bar in container]
        (mine,) = [o for o in cells if o["cell"]["role"] == role]
        assert sum(w) == pytest.approx(1, abs=1e-5)
        assert sum(d * mass for d, mass in enumerate(w)) == pytest.approx(mine["metrics"]["ceiling"] - 1, abs=1e-5)


def test_the_audit_leaves_sampled_chains_out(outcomes):
    """A sampled chain's verifier looks at q: it has no saturated ceiling, and its z must not be judged."""
    audited = measured.audited(outcomes)
    assert {o["cell"]["builder"] for o in audited} == {"best_first"}
    assert len({o["hash"] for o in audited}) == len(audited)
    assert any(o["cell"].get("builder") == "sampled_chain" for o in outcomes)


def test_the_recorded_rounds_hold_the_law():
    """Every round that Figures 1 and 2 could show: w sums to 1, the path is the text's, the bonus is no child there."""
    recording, _ = read(ROUNDS)
    for answer, said in enumerate(recording["answers"]):
        for cycle in range(len(said["rounds"])):
            one = Round(recording, answer, cycle, BASE, 8)
            assert sum(one.flow.w[v] for v in one.nodes) == pytest.approx(1, abs=1e-6)
            below = [one.node_label(v) for v in one.nodes if v and one.flow.parents[v] == one.path[-1]]
            assert one.bonus not in below
            accepted = [label for label, taken in child_tests(one) if taken]
            assert accepted == [one.node_label(v) for v in one.path[1:]]


def test_figure_1_says_what_the_whole_recording_says():
    """The round that is shown was chosen; its caption carries the mean over all rounds, which is smaller."""
    before, after, count = mean_change()
    recording, _ = read(ROUNDS)
    assert count == sum(len(answer["rounds"]) for answer in recording["answers"]) > 30
    assert 0 < after - before < 0.5
    assert [tree["name"].rsplit("-", 1)[-1] for tree in recording["answers"][0]["rounds"][0]["trees"][:2]] == [
        "base",
        "exit",
    ]


def test_colours_are_seaborn_s_colour_blind_palette():
    """A drafter keeps its colour in every figure, and all colours come from the palette made for all eyes."""
    import seaborn

    assert set(ROLES.values()) <= {colour.upper() for colour in seaborn.color_palette("colorblind").as_hex()}
    assert ROLES["original"] == ROLES["ddtree"] != ROLES["exit"]


def test_records_that_do_not_go_together_are_refused_in_words(outcomes, tmp_path):
    """Latencies of two machines are not one figure: it is not drawn, and says what the table says."""
    mixed = [o | {"device": {"name": f"cpu {i}", "threads": 1}} for i, o in enumerate(outcomes)]
    figure = draw_figure("latency", mixed, "tiny.yaml", tmp_path)
    assert figure.paths is None and "needs one machine" in figure.why
