"""Builders: the best-first tree against a heap, prefix closure, ties, bad rows; chains, OPT-Tree's rule, the oracle."""

import math
import random
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_reference import all_prefixes, ddtree_by_heap, heap_tree, random_law, toy

from tevlib.trees import builders
from tevlib.trees.builders import BUILDERS, best_first_tree, best_first_trees, chain_tree, opt_tree, oracle_tree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.top_tokens import top_tokens

INF = math.inf


def paths(tree):
    return [tree.path(node) for node in range(1, len(tree))]


def same_tree(a, b):
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.parents, b.parents) and torch.equal(a.scores, b.scores)


def rows(h, v, seed=0, scale=3.0, dtype=torch.float32):
    logits = torch.randn(h, v, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale
    return logits.log_softmax(-1)


@st.composite
def draft_rows(draw):
    """Rows with many exact ties, zeros (log-prob 0.0) and -inf entries: multiples of 1/4, so sums are exact."""
    h, v = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    entry = st.sampled_from([0.0, -0.25, -0.5, -0.5, -1.0, -2.0, -INF])
    return torch.tensor(draw(st.lists(st.lists(entry, min_size=v, max_size=v), min_size=h, max_size=h)))


@settings(max_examples=200, deadline=None)
@given(draft_rows(), st.integers(0, 40), st.one_of(st.none(), st.integers(0, 5)))
def test_best_first_equals_the_heap_under_ties(log_probs, budget, depth_limit):
    """Node for node the tree of a heap that pops one node at a time: same paths, scores and order; no -inf node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = best_first_tree(log_probs, budget, 5, depth_limit)
    expected = heap_tree(log_probs, budget, depth_limit)
    assert paths(tree) == [path for _, path in expected]
    assert tree.scores[1:].tolist() == [score for score, _ in expected]
    assert tree.tokens[0] == 5 and tree.scores[0] == 0
    assert tree.scores.isfinite().all() and (tree.scores.diff() <= 0).all()
    assert all(tree.parent(node) < node for node in range(len(tree)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("h", "v", "budget"), [(7, 3000, 64), (15, 500, 256), (3, 40, 1024), (1, 200, 64), (7, 2, 50)])
@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
def test_best_first_equals_the_heap_on_rows_of_a_drafter(h, v, budget, scale, dtype):
    """The same for realistic rows and budgets, in both precisions, confident rows (log-prob near 0) included."""
    log_probs = rows(h, v, seed=budget, scale=scale, dtype=dtype)
    tree = best_first_tree(log_probs, budget, 0)
    expected = heap_tree(log_probs, budget)
    assert tree.scores.dtype == dtype
    assert paths(tree) == [path for _, path in expected]
    assert tree.scores[1:].tolist() == [score for score, _ in expected]


@settings(max_examples=200, deadline=None)
@given(draft_rows(), st.integers(0, 40))
def test_levels_grow_the_tree_of_the_heap(log_probs, budget):
    """What a device grows level by level is the tree that the CPU's heap makes, ties included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_heap = best_first_tree(log_probs, budget, 5)
    levels = builders._levels(log_probs, budget)
    assert same_tree(builders._assemble(levels, budget, 5, log_probs), by_heap)


@pytest.mark.parametrize("budget", [1, 64, 256])
def test_best_first_is_the_tree_of_public_code(budget):
    """Without ties: tokens, parents, depths, visibility and child maps of the plain heap that decode loops use."""
    log_probs = rows(7, 3000, dtype=torch.float64)
    tree = best_first_tree(log_probs, budget, 9)
    tokens, parents, depths, children, visible = ddtree_by_heap(log_probs, budget, 9)
    assert torch.equal(tree.tokens, tokens) and torch.equal(tree.parents, parents)
    assert torch.equal(tree.depths, depths) and torch.equal(tree.ancestors, visible)
    for node, below in enumerate(children):
        assert {tree.token(child): child for child in tree.children[node]} == below


@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0, 40.0])
def test_rows_are_cut_below_what_a_tree_can_use(scale):
    """The floors that keep the heap's rows short lose nothing, for flat rows and for certain ones, and at any depth."""
    for seed, budget in enumerate((2, 20, 150)):
        log_probs = rows(9, 400, seed=seed, scale=scale)
        expected = heap_tree(log_probs, budget)
        assert paths(best_first_tree(log_probs, budget, 0)) == [path for _, path in expected]


@settings(max_examples=100)
@given(st.integers(1, 4), draft_rows(), st.integers(0, 40))
@pytest.mark.filterwarnings("ignore:only")
def test_many_trees_at_once_are_the_trees_one_by_one(n, log_probs, budget):
    """Ties, excluded tokens and budgets beyond the full tree included; every block has its own rows and root."""
    blocks = torch.stack([log_probs.roll(i, dims=0) for i in range(n)])
    together = best_first_trees(blocks, budget, list(range(n)))
    assert len(together) == n
    for root, (mine, block) in enumerate(zip(together, blocks, strict=True)):
        assert same_tree(mine, best_first_tree(block, budget, root))
        assert mine.token(0) == root


def test_many_trees_name_a_bad_row():
    """A NaN in any block is refused, as for one tree."""
    blocks = torch.stack([rows(3, 9), rows(3, 9, seed=1)])
    blocks[1, 2, 4] = math.nan
    with pytest.raises(ValueError, match="row 5: log_probs holds NaN"):
        best_first_trees(blocks, 4, [0, 0])


def test_the_tree_of_a_smaller_budget_is_a_prefix():
    """Builder order is best first and does not depend on the budget."""
    for log_probs in (rows(6, 300), (rows(6, 300) * 2).round() / 2):
        log_probs = log_probs.clamp(max=0)
        large = best_first_tree(log_probs, 200, 1)
        for budget in (0, 1, 2, 7, 64, 199):
            assert same_tree(best_first_tree(log_probs, budget, 1), large.prefix(budget + 1))


def test_equal_rows_are_taken_by_lowest_token_id():
    """All draft logits equal, V = 4, depth 2, budget 6: tokens 0..3, then 0 and 1 under token 0 (pytorch#127196)."""
    tree = best_first_tree(torch.zeros(2, 4).log_softmax(-1), 6, 9)
    assert paths(tree) == [[0], [1], [2], [3], [0, 0], [0, 1]]
    coarse = rows(3, 5000).bfloat16()  # few distinct values: ties at every budget's edge
    for budget in (5, 37, 64):
        assert paths(best_first_tree(coarse, budget, 0)) == [path for _, path in heap_tree(coarse.float(), budget)]


def test_a_certain_child_never_precedes_its_parent():
    """A child of log-probability 0.0 ties with its parent and still comes after it (sglang#36196)."""
    log_probs = torch.tensor([[-1.0, -1.0], [0.0, -3.0], [0.0, -INF]])
    assert paths(best_first_tree(log_probs, 6, 0)) == [[0], [1], [0, 0], [1, 0], [0, 0, 0], [1, 0, 0]]
    assert paths(best_first_tree(log_probs, 2, 0)) == [[0], [1]]


@pytest.mark.parametrize("budget", [3, 6, 50])
def test_impossible_prefixes_never_fill_the_budget(budget):
    """With -inf entries only finite prefixes are added, here at most four, and a shorter tree says so."""
    log_probs = torch.tensor([[0.0, -1, -INF, -INF], [0, -INF, -INF, -INF]])
    if budget > 4:
        with pytest.warns(UserWarning, match="only 4 prefixes have a finite draft score: the tree has 4 of"):
            tree = best_first_tree(log_probs, budget, 0)
    else:
        tree = best_first_tree(log_probs, budget, 0)
    assert paths(tree) == [[0], [0, 0], [1], [1, 0]][: min(budget, 4)]
    assert tree.scores.isfinite().all()


@pytest.mark.parametrize("builder", BUILDERS.values())
def test_budget_edges(builder):
    """Budget 0 gives the root alone, one larger than the full tree the full tree, silently; no rows give the root."""
    log_probs = rows(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paths(builder(log_probs, 0, 7)) == []
        assert paths(builder(log_probs[:0], 5, 7)) == []
        full = builder(log_probs, 50, 7)
        assert same_tree(builder(log_probs, 10**12, 7), full)
        assert len(builder(log_probs, 1, 7)) == 2
    assert len(full) - 1 == {best_first_tree: 20, chain_tree: 2}.get(builder, len(full) - 1)
    for budget in (-1, 2.0, True, "4", None):
        with pytest.raises(ValueError, match="budget must be"):
            builder(log_probs, budget, 7)


def test_depth_limit():
    """Depth limit 1 with budget 64 gives a star; 0 the root, more than H changes nothing, negative is refused."""
    log_probs = rows(5, 40)
    star = best_first_tree(log_probs, 64, 0, depth_limit=1)
    assert star.height == 1 and len(star) == 41
    assert len(best_first_tree(log_probs, 64, 0, depth_limit=0)) == 1
    assert same_tree(best_first_tree(log_probs, 64, 0, depth_limit=9), best_first_tree(log_probs, 64, 0))
    with pytest.raises(ValueError, match="depth_limit must be >= 0; got -1"):
        best_first_tree(log_probs, 64, 0, depth_limit=-1)


@pytest.mark.parametrize("builder", BUILDERS.values())
def test_nan_rows_are_refused(builder):
    """A NaN draft row names itself; it is never turned into token 0 or into ids at random (vllm#41834)."""
    log_probs = rows(3, 6)
    log_probs[1, 4] = math.nan
    with pytest.raises(ValueError, match="row 1: log_probs holds NaN"):
        builder(log_probs, 8, 0)
    log_probs[1] = math.nan
    with pytest.raises(ValueError, match="row 1"):
        builder(log_probs, 8, 0)
    with pytest.raises(ValueError, match=r"must be \[H, V\]"):
        builder(log_probs[0], 8, 0)


@pytest.mark.parametrize("value", [0.5, INF])
def test_positive_rows_are_refused(value):
    """Logits passed as log-probabilities would break prefix closure; a positive entry is refused, naming its row."""
    log_probs = rows(3, 6)
    log_probs[2, 1] = value
    for builder in BUILDERS.values():
        with pytest.raises(ValueError, match=r"row 2: log_probs holds .* > 0"):
            builder(log_probs, 8, 0)


def test_chain_is_the_argmax_path():
    """The chain holds each row's lowest-id argmax; -inf rows end it with a warning; scores are cumulative."""
    log_probs = torch.tensor([[-2.0, -1, -1], [-3, -3, -3], [-1, -1, 0]])
    tree = chain_tree(log_probs, 3, 4)
    assert paths(tree) == [[1], [1, 0], [1, 0, 2]] and tree.scores.tolist() == [0, -1, -4, -4]
    assert paths(chain_tree(log_probs, 2, 4)) == [[1], [1, 0]]
    log_probs[1] = -INF
    with pytest.warns(UserWarning, match="row 1 of log_probs is all -inf: the chain has 1 of 3"):
        assert paths(chain_tree(log_probs, 3, 4)) == [[1]]


def naive_opt_depth(log_probs, budget, threshold):
    """Number of levels by OPT-Tree's rule, from brute-force expected acceptances."""

    def expected(depth):
        laws = log_probs.double().exp().tolist()
        masses = all_prefixes(lambda path: laws[len(path)], log_probs.shape[1], depth).values()
        return math.fsum(sorted(masses, reverse=True)[:budget])

    depth = 1
    while depth < len(log_probs) and expected(depth + 1) - expected(depth) >= threshold:
        depth += 1
    return depth


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.2, 0.5, 2.0])
def test_opt_tree_stops_adding_levels_when_they_do_not_pay(threshold):
    """The tree is the best-first tree of the depth at which one more level gains less than the threshold."""
    for seed in range(8):
        log_probs = rows(5, 4, seed=seed, scale=2.5, dtype=torch.float64)
        for budget in (1, 4, 12):
            depth = naive_opt_depth(log_probs, budget, threshold)
            expected = best_first_tree(log_probs, budget, 0, depth_limit=depth)
            assert same_tree(opt_tree(log_probs, budget, 0, threshold), expected)


def test_opt_tree_threshold_is_checked():
    """A negative or NaN threshold is refused."""
    for threshold in (-0.1, math.nan):
        with pytest.raises(ValueError, match="threshold must be >= 0"):
            opt_tree(rows(2, 4), 4, 0, threshold)


def table_target(vocabulary, depth, seed, zeros=0.2):
    """A random target over prefixes: its law as a function of the path, and as a score of trees."""
    rng = random.Random(seed)
    laws = {}

    def law(path):
        return laws.setdefault(tuple(path), random_law(vocabulary, rng, zeros))

    calls = []

    def score(tree):
        calls.append(len(tree) - 1)
        return torch.tensor([law(tree.path(node)) for node in range(len(tree))], dtype=torch.float64).log() + 3.0

    return law, score, calls


@pytest.mark.parametrize("budget", [1, 2, 5, 13, 60])
@pytest.mark.parametrize("seed", range(6))
def test_oracle_equals_exhaustive_search(budget, seed):
    """Level by level the oracle finds the most likely prefixes of all, in order, with few calls on small trees."""
    law, score, calls = table_target(3, 4, seed)
    tree = oracle_tree(score, budget, 0, depth_limit=4)
    everything = sorted((p for p in all_prefixes(law, 3, 4).values() if p > 0), reverse=True)
    masses = tree.scores[1:].exp()
    torch.testing.assert_close(masses, torch.tensor(everything[:budget], dtype=torch.float64), rtol=0, atol=1e-12)
    for node in range(1, len(tree)):
        path = tree.path(node)
        assert math.prod(law(path[:i])[path[i]] for i in range(len(path))) == pytest.approx(float(masses[node - 1]))
    rows_at = torch.tensor([law(tree.path(node)) for node in range(len(tree))], dtype=torch.float64)
    assert float(exit_law(tree, probs=rows_at).coverage) == pytest.approx(math.fsum(everything[:budget]), abs=1e-12)
    assert len(calls) <= 4 and max(calls) <= budget


def test_no_builder_covers_more_than_the_oracle():
    """For one and the same target, C_p of every draft-side tree is at most the oracle's."""
    _, score, _ = table_target(4, 3, seed=9)
    draft = rows(3, 4, seed=2, dtype=torch.float64)
    for budget in (1, 4, 10):
        best = exit_law(tree := oracle_tree(score, budget, 0, 3), score(tree)).coverage
        for builder in BUILDERS.values():
            tree = builder(draft, budget, 0)
            assert exit_law(tree, score(tree)).coverage <= best + 1e-12


def test_oracle_of_factorised_rows_is_best_first():
    """When the target is itself a product of rows, the oracle tree is the best-first tree, ties included."""
    log_probs = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75]], dtype=torch.float64).log()
    padded = torch.cat([log_probs, log_probs[:1]])
    for budget in (0, 1, 5, 20, 39, 100):
        oracle = oracle_tree(lambda tree: padded[tree.depths], budget, 4, 3)
        assert paths(oracle) == paths(best_first_tree(log_probs, budget, 4))


def test_oracle_edges():
    """Budget or depth 0 gives the root; a greedy (one-hot) target gives its argmax chain; bad input is refused."""
    one_hot = torch.full((4,), -INF).index_fill(0, torch.tensor([2]), 0.0)
    chain = oracle_tree(lambda tree: one_hot.expand(len(tree), 4), 64, 1, 3)
    assert paths(chain) == [[2], [2, 2], [2, 2, 2]]
    assert len(oracle_tree(lambda tree: one_hot.expand(len(tree), 4), 0, 1, 3)) == 1
    assert len(oracle_tree(lambda tree: one_hot.expand(len(tree), 4), 9, 1, 0)) == 1
    with pytest.raises(ValueError, match="budget must be >= 0; got -2"):
        oracle_tree(lambda tree: one_hot.expand(len(tree), 4), -2, 1, 3)
    with pytest.raises(ValueError, match="node 0 has a NaN logit"):
        oracle_tree(lambda tree: torch.full((len(tree), 4), math.nan), 4, 1, 3)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 3, 63, 64, 65, 200, 640]),
    st.floats(0, 1),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_top_tokens_equal_a_stable_sort(h, v, fraction, levels, seed, dtype):
    """Values and ids equal a full stable sort whatever k, block edges, ties and -inf entries."""
    generator = torch.Generator().manual_seed(seed)
    table = -torch.randint(0, levels + 1, (h, v), generator=generator).to(dtype)
    table[table == -levels] = -INF
    k = 1 + int(fraction * (v - 1))
    values, ids = top_tokens(table, k)
    expected, order = table.sort(descending=True, stable=True)
    assert torch.equal(values, expected[:, :k])
    finite = values.isfinite()
    assert torch.equal(ids[finite], order[:, :k][finite])


def test_trees_of_the_worked_example():
    """The toy target's own oracle of budget 3 covers at least the toy tree's 1.1."""
    tree, logits = toy()
    by_path = {tuple(tree.path(node)): logits[node] for node in range(4)}
    flat = torch.full((4,), 0.25, dtype=torch.float64).log()
    oracle = oracle_tree(lambda t: torch.stack([by_path.get(tuple(t.path(n)), flat) for n in range(len(t))]), 3, 0, 3)
    assert float(oracle.scores[1:].exp().sum()) == pytest.approx(1.1)
    assert paths(oracle)[0] == [0]
