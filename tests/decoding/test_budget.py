"""The automatic budget: the rule against brute force, what it learns, the curve it reads."""

import random
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.stats import chisquare

from tests.tiny import make_drafter, make_target
from tevlib.decoding.budget import (
    PRIOR,
    REPEATS,
    AutoBudget,
    CostCurve,
    Ladder,
    choose_budget,
    cumulative,
    curve_of,
    never_falling,
)
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.sampling import target_probs
from tevlib.trees.verifiers import Verdict

CURVE = CostCurve((0, 8, 16, 32), (0.030, 0.034, 0.040, 0.060))
positive = st.floats(0.01, 100)


def star(probabilities: list[float]) -> DraftTree:
    """A root whose children have these draft probabilities, best first."""
    scores = torch.tensor([1.0, *probabilities], dtype=torch.float64).log()
    return DraftTree(range(len(scores)), [-1] + [0] * len(probabilities), scores)


def kinds_of_rounds(n: int, seed: int) -> list[list[float]]:
    """Probabilities of the children in `n` rounds: some sure, some where many tokens are possible, some hopeless."""
    rng = random.Random(seed)
    kinds = [[0.9] + [0.002] * 31, [0.03] * 32, [0.3, 0.2, 0.1] + [0.01] * 29, [0.001] * 32]
    return [rng.choice(kinds) for _ in range(n)]


def rate_of(rule, rounds: list[list[float]], curve: CostCurve = CURVE) -> float:
    """Expected tokens a second of `rule(cumulative coverage) -> B` over `rounds`, whose probabilities are true."""
    cost = curve.table(32)
    coverages = [cumulative([1.0, *p]) for p in rounds]
    chosen = [rule(coverage) for coverage in coverages]
    return sum(1 + c[b] for c, b in zip(coverages, chosen, strict=True)) / sum(cost[b] for b in chosen)


def play(auto: AutoBudget, rounds: list[list[float]], truth: float = 1.0, seed: int = 0) -> tuple[float, float]:
    """Tokens and seconds of `rounds` under `auto`; a child is accepted `truth` times as often as its draft says."""
    rng, tokens, seconds = random.Random(seed), 0.0, 0.0
    for probabilities in rounds:
        tree = auto.cut(star(probabilities))
        kept = [truth * p for p in probabilities[: len(tree) - 1]]
        draw = rng.random()
        accepted = next((i for i, p in enumerate(cumulative([1.0, *kept])[1:], start=1) if draw < p), None)
        auto.observe(tree, Verdict(accepted or 0, [0, accepted] if accepted else [0], 5))
        tokens += 1 + sum(kept)
        seconds += auto.cost[len(tree) - 1]
    return tokens, seconds


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=20), positive)
def test_the_choice_is_the_best_of_all(pairs, rate):
    """No B is worth more at that price of a second, and no smaller one as much."""
    expected, cost = zip(*pairs, strict=True)
    chosen = choose_budget(expected, cost, rate)
    worth = [e - rate * c for e, c in pairs]
    assert all(worth[chosen] >= w for w in worth) and all(worth[chosen] > w for w in worth[:chosen])


def test_a_price_of_a_second_beats_the_best_ratio_of_every_round():
    """Rates add up by sums: the rule at the best rate outdoes both the best ratio round by round and any fixed B."""
    rounds, cost = kinds_of_rounds(400, seed=1), CURVE.table(32)
    rate = 1 / cost[0]
    for _ in range(20):  # Dinkelbach: every step is a rate that a rule reaches, none is below the last
        better = rate_of(lambda coverage, r=rate: choose_budget([1 + c for c in coverage], cost, r), rounds)
        assert better >= rate - 1e-9
        rate = better
    greedy = rate_of(lambda coverage: max(range(33), key=lambda b: (1 + coverage[b]) / cost[b]), rounds)
    fixed = max(rate_of(lambda _, b=b: b, rounds) for b in range(33))
    assert rate > greedy * 1.001 and rate > fixed * 1.01


def test_an_answer_finds_the_best_rate():
    """Without knowing the rate, 300 rounds come within 2% of the best rule, and outdo the best fixed budget."""
    rounds, cost = kinds_of_rounds(300, seed=2), CURVE.table(32)
    best = 0.0
    for _ in range(20):
        best = rate_of(lambda coverage, r=best: choose_budget([1 + c for c in coverage], cost, r), rounds)
    tokens, seconds = play(AutoBudget(CURVE, 32), rounds)
    assert tokens / seconds > 0.98 * best
    assert tokens / seconds > max(rate_of(lambda _, b=b: b, rounds) for b in range(33))


@pytest.mark.parametrize("truth", [0.4, 1.0])
def test_a_drafter_is_believed_as_far_as_it_was_right(truth):
    """The factor goes to accepted over expected: too sure a drafter is given smaller trees than it asks for."""
    auto = AutoBudget(CURVE, 32)
    assert auto.factor == 1 and auto.expected == PRIOR
    play(auto, [[0.3, 0.2, 0.1] + [0.01] * 29] * 1500, truth)
    assert auto.factor == pytest.approx(truth, abs=0.06)
    trusting = AutoBudget(CURVE, 32)
    same = star([0.3] + [0.03] * 20)
    assert len(auto.cut(same)) <= len(trusting.cut(same))


def test_free_nodes_are_all_kept_and_dear_ones_dropped():
    """Where every size costs the same the whole tree stays; where a node costs more than it brings, the root."""
    tree = star([0.2] * 4)
    assert len(AutoBudget(CostCurve((0, 4), (1.0, 1.0)), 4).cut(tree)) == 5
    assert len(AutoBudget(CostCurve((0, 1, 4), (1.0, 2.0, 5.0)), 4).cut(tree)) == 1


def test_a_cut_is_a_prefix_and_the_root_may_stand_alone():
    """Whatever is chosen is the builder's tree of a smaller budget; a tree without scores has a root only."""
    auto = AutoBudget(CURVE, 32)
    tree = star([0.5, 0.2] + [0.001] * 20)
    cut = auto.cut(tree)
    assert 1 < len(cut) < len(tree) and cut.tokens.tolist() == tree.tokens.tolist()[: len(cut)]
    assert len(auto.cut(DraftTree([3], [-1]))) == 1


@given(st.lists(positive, min_size=1, max_size=12))
def test_pooling_is_the_isotonic_fit(values):
    """The curve never falls, and is the closest such to what was measured: scipy's own fit."""
    ours = never_falling(values)
    assert all(a <= b + 1e-9 for a, b in pairwise(ours))
    assert ours == pytest.approx(isotonic_regression(values).x.tolist())


def test_a_table_meets_its_sizes_and_goes_level_beyond():
    """Between measured sizes along a line; a size nobody measured is not extrapolated."""
    table = CostCurve((0, 2, 4), (1.0, 3.0, 2.0)).table(6)
    assert table == pytest.approx([1.0, 1.75, 2.5, 2.5, 2.5, 2.5, 2.5])
    assert CURVE.table(32)[::8] == pytest.approx([0.030, 0.034, 0.040, 0.050, 0.060])


@pytest.mark.parametrize("bad", [((), ()), ((1, 2), (1.0, 1.0)), ((0, 2, 2), (1.0,) * 3), ((0,), ()), ((0,), (0.0,))])
def test_a_curve_that_says_nothing_is_refused(bad):
    """No size, no root, a size twice, a time missing or zero: a ValueError with what was given."""
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve(*bad)


def test_a_ladder_times_every_size_as_often():
    """Small sizes come six times, large ones twice, up and down in turns; nothing slow once, or at first, counts."""
    ladder = Ladder(64)
    tree = star([0.01] * 64)
    sizes = [len(ladder.cut(tree)) - 1 for _ in range(ladder.left)]
    small, large = [0, 1, 3, 5, 7, 9, 11, 15, 19, 23], [31, 64]
    assert Counter(sizes) == dict.fromkeys(small, REPEATS) | dict.fromkeys(large, 2)
    assert sizes[:22] == small + large + small[::-1]
    timed = [(size, 0.03 + 0.001 * size) for size in sizes]
    timed[2] = (timed[2][0], 9.0)
    timed[:12] = [(size, seconds + 0.1) for size, seconds in timed[:12]]
    curve = curve_of(timed, measured_s=1.5)
    assert curve.seconds == pytest.approx([0.03 + 0.001 * size for size in curve.sizes]) and curve.measured_s == 1.5


PROMPT = [4, 9, 17, 33, 5, 60, 8, 8, 21]


@pytest.mark.parametrize("verifier", ["greedy", "tev", "sequential_residual"])
def test_auto_leaves_the_text_as_it_is(llama, verifier):
    """At T = 0 the tokens are plain decoding's; rounds are timed once per setting, outside both clocks."""
    drafter = make_drafter(llama)
    how = {"max_new_tokens": 40, "stop": ()}
    first, second = (speculate(llama, drafter, PROMPT, budget="auto", verifier=verifier, **how) for _ in range(2))
    assert first.tokens == second.tokens == autoregressive(llama, PROMPT, **how).tokens
    assert first.measuring_s > 10 * second.measuring_s and len(llama.cost_curves[drafter]) == 1
    (curve,) = llama.cost_curves[drafter].values()
    assert curve.sizes[0] == 0 and curve.sizes[-1] == 64 and 0 < curve.measured_s <= first.measuring_s


def test_rounds_are_timed_as_they_will_be_run(llama):
    """Another verifier or temperature costs something else: each setting has a curve of its own."""
    drafter = make_drafter(llama)
    settings = [("tev", 0.0), ("tev", 1.0), ("predraw", 1.0)]
    for verifier, temperature in settings:
        speculate(llama, drafter, PROMPT, budget="auto", verifier=verifier, temperature=temperature, max_new_tokens=4)
    assert [key[1:3] for key in llama.cost_curves[drafter]] == settings


@pytest.mark.parametrize("verifier", ["predraw", "sequential_residual", "tev"])
def test_tokens_of_chosen_trees_follow_the_law(verifier):
    """Trees whose size follows from scores and from what was accepted before leave the target's law alone: chi-square.

    The curve makes budgets vary with both.
    """
    target = make_target(vocab_size=8, hidden_size=16, num_hidden_layers=2)
    drafter = make_drafter(target, block_size=3, layers=1, taps=(0,), mask_id=5)
    curve = CostCurve((0, 1, 4, 8), (1.0, 1.05, 1.3, 2.0))
    counts, sizes, n = Counter(), set(), 600
    for seed in range(n):
        answer = speculate(
            target, drafter, [4, 6], budget=AutoBudget(curve, 8), verifier=verifier, temperature=1.0,
            max_new_tokens=3, stop=(), seed=seed,
        )  # fmt: skip
        counts[tuple(answer.tokens)] += 1
        sizes |= {len(r.tree) for r in answer.rounds}
    assert len(sizes) > 2
    law = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, mass in law.items():
            logits, _ = target.prefill(target.new_cache(8), torch.tensor([4, 6, *text]))
            longer |= {(*text, token): mass * p for token, p in enumerate(target_probs(logits, 1.0).tolist())}
        law = longer
    common = [text for text, mass in law.items() if mass * n >= 5]
    observed = [counts[text] for text in common] + [n - sum(counts[text] for text in common)]
    expected = [n * law[text] for text in common] + [n * (1 - sum(law[text] for text in common))]
    assert chisquare(observed, [e * sum(observed) / sum(expected) for e in expected]).pvalue > 1e-3


def test_a_budget_of_ones_own_is_used_and_kept(llama):
    """With a curve given nothing is measured, the trees are the same every time, and the record is the caller's."""
    runs = []
    for _ in range(2):
        auto = AutoBudget(CostCurve((0, 32), (1.0, 1.5)), 32)
        answer = speculate(llama, make_drafter(llama), PROMPT, budget=auto, temperature=1.0, seed=3, stop=())
        runs.append((answer.tokens, [len(r.tree) for r in answer.rounds], auto.factor))
        assert not llama.cost_curves
    assert runs[0] == runs[1] and runs[0][2] != 1


@pytest.mark.parametrize("fault", ["a block of the anchor alone", "NaN", "a prompt past the drafter's positions"])
@pytest.mark.filterwarnings("ignore:round .*NaN")
def test_rounds_that_draft_nothing_are_steps_too(llama, fault):
    """Measuring ends however little a drafter drafts: every round counts, and the text is the target's own."""
    drafter = make_drafter(llama, block_size=1 if fault.startswith("a block") else 8)
    if fault == "NaN":
        torch.nn.init.constant_(drafter.norm.weight, torch.nan)
    if fault.startswith("a prompt"):
        drafter.config.max_position_embeddings = len(PROMPT)
    how = dict(max_new_tokens=12, stop=())
    ladder = Ladder(3)
    answer = speculate(llama, drafter, PROMPT, budget=ladder, **how)
    assert ladder.taken == len(answer.rounds) == 11
    automatic = speculate(llama, drafter, PROMPT, budget="auto", **how)
    assert automatic.tokens == answer.tokens == autoregressive(llama, PROMPT, **how).tokens


def test_what_no_budget_can_be_is_refused(llama):
    """Another word than auto, and an automatic budget for a chain of draws, whose law a cut would change."""
    drafter = make_drafter(llama)
    with pytest.raises(ValueError, match="budget must be an integer >= 0 or 'auto'; got 'best'"):
        speculate(llama, drafter, PROMPT, budget="best")
    for budget in ("auto", AutoBudget(CURVE, 8)):
        with pytest.raises(ValueError, match="a sampled chain takes a number"):
            speculate(llama, drafter, PROMPT, budget=budget, builder="sampled_chain", temperature=1.0)
