"""The one-file page in a real, offline Chromium: what is shown is the law, and everything can be reached."""

import itertools
import re

import pytest

from tests.explorer.made import HOSTILE, made_recording
from tevlib.explorer import colours
from tevlib.explorer.flow import flow, missing_tokens
from tevlib.explorer.layout import MARGIN, ROW
from tevlib.explorer.page import script
from tevlib.explorer.widget import TreeExplorer

pytestmark = pytest.mark.slow

NODES = "() => [...document.querySelectorAll('.tx-pane:first-child .tx-node')].map(n => [+n.dataset.node, n.ariaLabel])"


def shown(page) -> dict[int, tuple[float, float]]:
    """P and w of every node of the first tree, as its accessible names say."""
    found = {}
    for node, label in page.evaluate(NODES):
        P, w = re.search(r": P ([\d.]+), w ([\d.]+)$", label).groups()
        found[node] = (float(P), float(w))
    return found


def agree(page, law) -> None:
    found = shown(page)
    assert sorted(found) == law.alive
    for node, (P, w) in found.items():
        assert P == pytest.approx(law.P[node], abs=6e-5) and w == pytest.approx(law.w[node], abs=6e-5)


def tile(page, name: str) -> float:
    return float(page.locator(".tx-tile", has_text=name).locator("b").first.inner_text())


def slide(page, name: str, value: int) -> None:
    page.locator(f"input[name={name}]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", value
    )


def test_the_page_asks_nobody_and_shows_every_node(open_page):
    """One request (the file), no error; each node with its P and w; the fill of a node is its w on the ramp."""
    explorer = TreeExplorer(made_recording(), theme="light")
    page = open_page(explorer)
    assert len(page.requests) == 1 and page.requests[0].startswith("file:") and page.problems == []
    agree(page, explorer.flow)
    largest = max(explorer.flow.w)
    for node in (0, 3, 7):
        fill = page.locator(f"[data-node='{node}'] rect").get_attribute("fill")
        t = colours.place(explorer.flow.w[node], largest, False)
        assert fill == colours.colour(colours.ramps()["light"], t)
    assert tile(page, "Σ w(v)") == pytest.approx(1)
    assert tile(page, "C_p = Σ P(v)") == pytest.approx(explorer.flow.coverage, abs=6e-5)
    assert tile(page, "C_p = Σ w(v)·depth") == pytest.approx(explorer.flow.coverage, abs=6e-5)
    assert tile(page, "ceiling") == pytest.approx(1 + explorer.flow.coverage, abs=6e-5)


def test_sliders_prune_reheat_and_turn_the_round(open_page):
    """At every budget and every recorded temperature the page shows the exit law of the pruned tree; rounds too."""
    recording = made_recording(nodes=(14, 9))
    page = open_page(TreeExplorer(recording))
    trees = [cycle["trees"][0] for cycle in recording["answers"][0]["rounds"]]
    for budget in (0, 1, 6, 13):
        slide(page, "budget", budget)
        for stop, temperature in enumerate(recording["temperatures"]):
            slide(page, "temperature", stop)
            agree(page, flow(trees[0], temperature, stop, budget))
    assert "text was drawn at 1" in page.locator("label", has_text="Temperature").inner_text() or stop == 2
    slide(page, "round", 1)
    agree(page, flow(trees[1], 1.0, 2))
    assert "2 of 2" in page.locator(".tx-bar").first.inner_text()
    assert page.locator(".tx-before").inner_text() + page.locator(".tx-root").inner_text() != ""


def test_the_text_so_far_and_the_block(open_page):
    """The strip shows the text before, the accepted tokens and the bonus; pruning the path makes a token the bonus."""
    recording = made_recording(nodes=(12, 17))
    cycle, pieces = recording["answers"][0]["rounds"][1], recording["answers"][0]["pieces"]
    page = open_page(TreeExplorer(recording, round=1))
    accepted = page.locator(".tx-accepted").all_inner_texts()
    start, n = cycle["start"], len(cycle["path"]) - 1
    assert accepted == pieces[start : start + n]
    assert page.locator(".tx-bonus-text").inner_text() == pieces[start + n]
    assert page.locator(".tx-node.tx-taken").count() == n + 1
    slide(page, "budget", cycle["path"][-1] - 1)
    assert page.locator(".tx-accepted").count() == n - 1
    assert page.locator(".tx-bonus-text").inner_text() == pieces[start + n - 1]


def test_hover_pin_and_card(open_page):
    """Pointing shows token, path, P, rho, w, rank and missing tokens with their gains; a click pins it."""
    recording = made_recording()
    explorer = TreeExplorer(recording)
    page = open_page(explorer)
    law, tree = explorer.flow, recording["answers"][0]["rounds"][0]["trees"][0]
    node = next(v for v in range(1, 12) if v in tree["parents"])
    page.locator(f"[data-node='{node}']").hover()
    said = page.locator(".tx-card").inner_text()
    for value in (law.P[node], law.rho[node], law.w[node]):
        assert f"{value:.4f}" in said
    assert f"rank {node} of 11" in said and f"t{tree['tokens'][node]}" in said
    wanted = missing_tokens(tree, law, node, 1.0, 2)[:6]
    gains = page.locator(".tx-missing .tx-value").all_inner_texts()
    assert [float(gain) for gain in gains] == pytest.approx([gain for _, gain in wanted], abs=6e-5)
    page.locator(f"[data-node='{node}']").click()
    page.mouse.move(5, 5)
    assert "pinned" in page.locator(".tx-card").inner_text()


def test_what_if_gains_exactly_and_can_be_undone(open_page):
    """A click on a missing token grows the tree: C_p and ceiling rise by P(v) p_v(a); nothing overlaps or crosses."""
    recording = made_recording()
    explorer = TreeExplorer(recording)
    page = open_page(explorer)
    tree, before = explorer.tree, explorer.flow
    node = max(before.alive, key=lambda v: before.w[v])
    token, gain = missing_tokens(tree, before, node, 1.0, 2)[0]
    page.locator(f"[data-node='{node}']").click()
    page.locator(f".tx-missing button[data-token='{token}']").click()
    after = flow(tree, 1.0, 2, edits=[("add", node, token)])
    agree(page, after)
    assert tile(page, "C_p = Σ P(v)") == pytest.approx(before.coverage + gain, abs=6e-5)
    assert tile(page, "ceiling") == pytest.approx(1 + before.coverage + gain, abs=6e-5)
    assert tile(page, "Σ w(v)") == pytest.approx(1)
    assert f"C_p +{gain:.4f}, exactly" in page.locator(".tx-what-if").inner_text()
    tops = page.evaluate("() => [...document.querySelectorAll('.tx-node')].map(n => +n.children[0].getAttribute('y'))")
    check_cells(after, [(top - MARGIN) / ROW for top in tops])
    page.get_by_role("button", name="Drop the leaf that the target reaches least").click()
    assert page.locator(".tx-pane .tx-node").count() == len(tree["tokens"])
    page.get_by_role("button", name="Take the last change back (U)").click()
    page.get_by_role("button", name="Take the last change back (U)").click()
    agree(page, before)
    assert page.locator(".tx-what-if").is_hidden()


def check_cells(law, rows) -> None:
    """One node a cell, and no crossing edges, as in the layout's own test."""
    assert len({(law.depth[node], row) for node, row in enumerate(rows)}) == len(rows)
    edges = [(law.depth[v], rows[law.parents[v]], rows[v]) for v in range(1, len(rows))]
    for (d, a, a_end), (e, b, b_end) in itertools.combinations(edges, 2):
        assert d != e or a == b or (a - b) * (a_end - b_end) > 0


@pytest.mark.parametrize("verifier", ["tev", "predraw", "sequential_residual"])
def test_playing_to_the_end(open_page, verifier):
    """Play ends at an exit node with its path ringed and a bonus; the same seed plays the same; step goes on."""
    page = open_page(TreeExplorer(made_recording(nodes=(30,)), verifier=verifier, seed=7))
    slide(page, "speed", 4)
    ends = []
    for _ in range(2):
        page.get_by_role("button", name="Play the verifier").click()
        page.wait_for_selector(".tx:not([data-played=''])[data-played]")  # the words of the play before may still stand
        ends.append(page.locator(".tx-say").inner_text())
        exit_node = int(page.locator(".tx").get_attribute("data-played"))
        assert "tokens from one target pass" in ends[-1]
        assert page.locator(".tx-node.tx-exit").get_attribute("data-node") == str(exit_node)
        assert page.locator(".tx-bonus").count() == 1
        page.get_by_role("button", name="Forget all plays").click()
    assert ends[0] == ends[1]
    page.get_by_role("button", name="One step of the verifier").click()
    first = page.locator(".tx-say").inner_text()
    assert {"tev": "one draw from w", "predraw": "drawn at each of the 30", "sequential_residual": "test"}[
        verifier
    ] in first
    assert page.problems == []


def test_many_plays_converge_to_the_exit_law(open_page):
    """2,000 plays of each verifier pass the chi-square test against w, and their mean length is near 1 + C_p."""
    explorer = TreeExplorer(made_recording(nodes=(40,)), seed=3)
    page = open_page(explorer)
    page.get_by_role("button", name="Play each verifier 2000 times").click()
    for key in ("tev", "predraw", "sequential_residual"):
        row = page.locator(f"tr[data-verifier={key}][data-plays='2000']")
        row.wait_for()
        assert float(row.get_attribute("data-p")) > 1e-4
        mean = float(row.locator("td").nth(2).inner_text())
        assert mean == pytest.approx(1 + explorer.flow.coverage, abs=0.15)
    assert page.locator(".tx-histogram line.tx-w").count() >= 3


def test_the_keyboard_reaches_everything(open_page):
    """Tab reaches the tree; arrows walk it, Enter pins, A adds, U undoes, D drops, brackets turn the round."""
    explorer = TreeExplorer(made_recording())
    page = open_page(explorer)
    page.locator(".tx-scroll").first.focus()
    page.keyboard.press("ArrowRight")
    first = explorer.tree["parents"].index(0)
    assert page.locator(".tx-scroll").get_attribute("aria-activedescendant").endswith(f"-{first}")
    assert f"t{explorer.tree['tokens'][first]}" in page.locator(".tx-card-token").inner_text()
    page.keyboard.press("Enter")
    assert "pinned" in page.locator(".tx-card").inner_text()
    page.keyboard.press("a")
    assert page.locator(".tx-node.tx-added").count() == 1
    page.keyboard.press("u")
    assert page.locator(".tx-node.tx-added").count() == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("d")
    assert page.locator(".tx-node").count() < 12
    page.keyboard.press("]")
    assert page.locator(".tx-node").count() == 17
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.name || document.activeElement.title || ''"))
    assert {"answer", "round", "budget", "temperature", "colour_by", "verifier", "seed"} <= reached


def test_hostile_tokens_stay_text(open_page):
    """`</script>`, quotes, newline, direction override, NUL: nothing runs, nothing breaks, all is readable."""
    recording = made_recording(nodes=(40,), labels=HOSTILE)
    recording["answers"][0]["prompt"] = HOSTILE[3] + HOSTILE[6]
    recording["answers"][0]["pieces"] = [HOSTILE[4]] * 40
    page = open_page(TreeExplorer(recording, round=0))
    assert page.evaluate("() => window.hacked") is None and page.problems == [] and len(page.requests) == 1
    assert page.locator(".tx img, .tx script").count() == 0
    node = next(v for v, token in enumerate(recording["answers"][0]["rounds"][0]["trees"][0]["tokens"]) if token == 3)
    page.locator(f"[data-node='{node}']").click()
    assert page.locator(".tx-card-token").inner_text() == HOSTILE[3]
    assert "\u202e" not in page.locator(".tx").inner_text()


def test_compare_marks_what_moved(open_page):
    """Two trees on one context side by side: what only one of them has is marked, and the difference of C_p said."""
    recording = made_recording()
    one, other = recording["answers"][0]["rounds"][0]["trees"]
    page = open_page(TreeExplorer(recording, compare=1))
    assert page.locator(".tx-pane").count() == 2
    laws = [flow(tree, 1.0, 2) for tree in (one, other)]
    said = page.locator(".tx-pane-name").nth(1).inner_text()
    change = laws[1].coverage - laws[0].coverage
    assert f"{abs(change):.3f}" in said and ("−" in said) == (change < 0)
    prefixes = [{tuple(path(tree, v)) for v in range(len(tree["tokens"]))} for tree in (one, other)]
    for pane, (mine, theirs) in enumerate([prefixes, prefixes[::-1]]):
        assert page.locator(".tx-pane").nth(pane).locator(".tx-only").count() == len(mine - theirs)


def path(tree, node):
    while node:
        yield tree["tokens"][node]
        node = tree["parents"][node]


def test_an_error_is_shown_and_changes_nothing(open_page):
    """What cannot be done is said in the page, in an alert, and the tree stays as it was."""
    page = open_page(TreeExplorer(made_recording(), what_if=[["drop", 3, -1]]))
    count = page.locator(".tx-node").count()
    page.evaluate("() => { document.querySelector('[name=seed]').value = '-5'; }")
    page.locator("[name=seed]").dispatch_event("change")
    assert page.locator("[name=seed]").input_value() == "0"
    slide(page, "temperature", 99)
    assert page.locator(".tx-node").count() == count


def test_drawing_grows_with_the_nodes_and_not_with_their_square(open_page):
    """1,024 nodes are drawn, and take less than 24 times as long as 128 (eight times the nodes; the square is 64)."""
    redraw = """() => { const start = performance.now(); document.querySelector("[title='Light or dark']").click();
        document.body.getBoundingClientRect(); return performance.now() - start; }"""
    pages = [open_page(TreeExplorer(made_recording(nodes=(n,), trees=1, wide=60))) for n in (128, 1024)]
    assert [page.locator(".tx-node").count() for page in pages] == [128, 1024]
    times = [[page.evaluate(redraw) for page in pages] for _ in range(5)]  # in turns
    assert min(large for _, large in times) < 24 * min(small for small, _ in times)


def test_a_phone_shows_the_page_whole(open_page):
    """At phone width nothing is wider than the screen."""
    phone = open_page(TreeExplorer(made_recording()), width=390, height=844, has_touch=True)
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_the_scripts_can_stand_in_a_page():
    """The explorer's own code holds nothing that would end its script element, and imports nothing."""
    assert "</script" not in script().lower() and "import " not in re.sub(r"//.*", "", script())
