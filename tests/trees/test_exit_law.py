"""The exit law: identities of Section 3, exactness against the naive form, and hard numerics."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_reference import T1_PROBS, T1_W, log_rows, parent_arrays, random_case, random_law, toy
from tree_reference import exit_law as naive_exit_law

from tevlib.trees import row_masses
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law, exit_laws


@st.composite
def cases(draw, max_nodes=12):
    """A random tree with target laws that hold zeros: (tree, tokens, probs)."""
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, draw(st.integers(1, max_nodes))))]
    return random_case(parents, draw(st.integers(max(1, max(map(parents.count, parents))), 14)), draw(st.integers(0)))


def test_worked_example():
    """The toy tree by hand: P, rho, w, coverage, residuals, one-step gains and missing mass."""
    tree, logits = toy()
    law = exit_law(tree, logits)
    expected = {"P": [1, 0.5, 0.3, 0.3], "rho": [0.2, 0.4, 1, 1], "w": T1_W}
    for name, values in expected.items():
        torch.testing.assert_close(getattr(law, name), torch.tensor(values, dtype=torch.float64))
    assert float(law.coverage) == pytest.approx(1.1) and float(law.ceiling) == pytest.approx(2.1)
    assert float((law.w * (tree.depths + 1)).sum()) == pytest.approx(2.1)
    residuals = [[0, 0, 1, 0], [0.25, 0.5, 0, 0.25], [0.25] * 4, T1_PROBS[3]]
    for node, residual in enumerate(residuals):
        torch.testing.assert_close(law.residual(node), torch.tensor(residual, dtype=torch.float64))
    assert float(law.one_step_gain(1, 1)) == pytest.approx(0.5 * 0.2)
    assert float(law.one_step_gain(3, 0)) == pytest.approx(0.3 * 0.7)
    assert float(law.missing_mass(1)) == pytest.approx(0.2)


def test_block_length_counts_every_round_and_the_bonus():
    """Exits at nodes 3, 0, 2 of the toy tree are blocks of 3, 1 and 2 tokens: mean 2, accepted drafts 1 (EAGLE#146)."""
    tree, _ = toy()
    lengths = [len(tree.node_path(node)) for node in (3, 0, 2)]
    assert lengths == [3, 1, 2] and sum(lengths) / 3 == 2.0
    assert sum(len(tree.path(node)) for node in (3, 0, 2)) / 3 == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_small_tree_matches_the_definition(dtype):
    """All trees of at most 5 nodes: P, rho, w equal Eqs. 2 and 4 in plain Python, from logits and from probs."""
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for seed, parents in enumerate(parent_arrays(5)):
        tree, tokens, probs = random_case(parents, 5, seed)
        expected = naive_exit_law(tokens, parents, probs)
        for law in (exit_law(tree, log_rows(probs, dtype)), exit_law(tree, probs=torch.tensor(probs, dtype=dtype))):
            for got, want in zip((law.P, law.rho, law.w), expected, strict=True):
                assert got.dtype == dtype
                torch.testing.assert_close(got, torch.tensor(want, dtype=dtype), rtol=0, atol=tolerance)
            torch.testing.assert_close(law.log_P.exp(), law.P)


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([0.3, 1.0, 2.0]))
def test_conservation(case, temperature):
    """w sums to 1; every subtree's w sums to its P (Eq. 26); coverage is the mean exit depth (Eq. 6); 0 <= rho <= 1."""
    tree, _, probs = case
    law = exit_law(tree, log_rows(probs), temperature)
    assert abs(float(law.w.sum()) - 1) < 1e-12
    torch.testing.assert_close(tree.ancestors.double().T @ law.w, law.P, rtol=0, atol=1e-12)
    assert float(law.coverage) == pytest.approx(float((law.w * tree.depths).sum()), abs=1e-12)
    assert (law.rho >= 0).all() and (law.rho <= 1).all()
    leaves = [node for node in range(len(tree)) if not tree.children[node]]
    assert (law.rho[leaves] == 1).all()


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0))
def test_one_step_gains(case, seed):
    """Adding a missing child raises coverage by its one-step gain (Eq. 12); the gains at a node sum to w (Eq. 13)."""
    tree, tokens, probs = case
    rng = random.Random(seed)
    law = exit_law(tree, log_rows(probs))
    node = rng.randrange(len(tree))
    missing = [a for a in range(len(probs[0])) if tree.child(node, a) is None]
    gains = {a: float(law.one_step_gain(node, a)) for a in missing}
    assert math.fsum(gains.values()) == pytest.approx(float(law.missing_mass(node)), abs=1e-12)
    if missing:
        token = rng.choice(missing)
        larger = DraftTree([*tokens, token], [*tree.parents.tolist(), node])
        grown = exit_law(larger, log_rows([*probs, random_law(len(probs[0]), rng)]))
        assert float(grown.coverage - law.coverage) == pytest.approx(gains[token], abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0))
def test_node_order_does_not_matter(case, seed):
    """Renumbering the nodes (siblings swapped, other topological orders) permutes the law and changes nothing else."""
    tree, tokens, probs = case
    rng = random.Random(seed)
    order, open_nodes = [], [0]
    while open_nodes:
        node = open_nodes.pop(rng.randrange(len(open_nodes)))
        order.append(node)
        open_nodes += tree.children[node]
    place = {node: i for i, node in enumerate(order)}
    parents = [-1, *(place[tree.parent(node)] for node in order[1:])]
    renumbered = DraftTree([tokens[node] for node in order], parents)
    law, other = exit_law(tree, log_rows(probs)), exit_law(renumbered, log_rows([probs[node] for node in order]))
    torch.testing.assert_close(other.w, law.w[order], rtol=0, atol=1e-12)
    torch.testing.assert_close(other.coverage, law.coverage, rtol=0, atol=1e-12)


def random_tree(nodes, vocabulary, reach, seed):
    rng = random.Random(seed)
    used = {}
    tokens, parents = [0], [-1]
    while len(tokens) < nodes:
        parent = rng.randrange(max(0, len(tokens) - reach), len(tokens))
        token = rng.randrange(vocabulary)
        if used.setdefault((parent, token), len(tokens)) == len(tokens):
            tokens.append(token)
            parents.append(parent)
    return DraftTree(tokens, parents)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    ("nodes", "vocabulary", "reach"),
    [(1, 262_144, 1), (2, 50, 1), (8, 262_144, 4), (65, 4096, 64), (1024, 64, 40), (1024, 64, 1), (1024, 3, 900)],
)
@pytest.mark.parametrize("sharp", [False, True])
def test_total_mass_at_size(nodes, vocabulary, reach, sharp, dtype, tolerance):
    """sum w = 1 for bushy trees and chains of up to 1,024 nodes, large vocabularies, flat and confident laws."""
    tree = random_tree(nodes, vocabulary, reach, seed=nodes)
    logits = torch.randn(nodes, vocabulary, dtype=dtype, generator=torch.Generator().manual_seed(1)) * 4
    if sharp:
        logits[tree.parents[1:], tree.tokens[1:]] += 18
    law = exit_law(tree, logits, 0.8)
    assert abs(float(law.w.double().sum()) - 1) <= tolerance
    assert (law.rho >= 0).all() and law.w.isfinite().all()


def test_children_that_hold_all_mass_leave_no_exit():
    """rho is exactly 0, never negative, when the children cover the support, in float32 too (sglang#27618)."""
    cover = DraftTree([0, 0, 1], [-1, 0, 0])
    law = exit_law(cover, torch.tensor([[0.0, 0.0, -math.inf, -math.inf]] * 3))
    assert law.rho.tolist() == [0, 1, 1] and law.w[0] == 0
    with pytest.raises(ValueError, match="node 0: its children hold all target mass"):
        law.residual(0)
    ten = DraftTree([0, *range(10)], [-1] + [0] * 10)
    law = exit_law(ten, torch.zeros(11, 10))
    assert law.rho[0] == 0 and abs(float(law.w.sum()) - 1) < 1e-6
    law = exit_law(ten, probs=torch.full((11, 10), 0.1))
    assert law.rho[0] == 0 and abs(float(law.w.sum()) - 1) < 1e-6


def test_missing_mass_keeps_its_digits_when_children_hold_nearly_all():
    """rho = 1e-9 under a confident row is right in float32, where 1 - p rounds to 0."""
    tree = DraftTree([0, 0], [-1, 0])
    law = exit_law(tree, torch.tensor([[0.0, math.log(1e-9)], [0.0, 0.0]]))
    assert float(law.rho[0]) == pytest.approx(1e-9, rel=1e-5)


def test_missing_mass_below_the_precision_of_one_is_not_lost():
    """rho = e^-60, which 1 - p gives as 0 in float64 too, keeps its digits, its exit and its residual law."""
    tree = DraftTree([0, 0], [-1, 0])
    law = exit_law(tree, torch.tensor([[0.0, -60.0, -61.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    missing = math.exp(-60) + math.exp(-61)
    assert float(law.rho[0]) == pytest.approx(missing, rel=1e-9) == float(law.w[0])
    expected = torch.tensor([0.0, math.exp(-60), math.exp(-61)], dtype=torch.float64) / missing
    torch.testing.assert_close(law.residual(0), expected, rtol=1e-9, atol=0.0)


def test_deep_underflow_stays_in_log_space():
    """P of a deep unlikely path underflows to 0 in float32 while log_P stays exact and w still sums to 1."""
    tree = DraftTree([0] + [1] * 40, list(range(-1, 40)))
    law = exit_law(tree, torch.tensor([[0.0, -90.0]]).repeat(41, 1))
    assert float(law.log_P[-1]) == pytest.approx(-3600, rel=1e-6)
    assert law.P[-1] == 0 and float(law.w.sum()) == pytest.approx(1, abs=1e-6)
    assert float(law.edge_log_probs[1]) == pytest.approx(-90, rel=1e-6)
    far = exit_law(tree, torch.tensor([[0.0, -3000.0]]).repeat(41, 1))
    assert float(far.edge_log_probs[1]) == pytest.approx(-3000, rel=1e-6)


@pytest.mark.parametrize("temperature", [0, 1e-6, 0.7, 1])
def test_zero_probability_child_and_its_subtree(temperature):
    """A child of probability 0 and all below it have w = 0 and P = 0, and its parent's rho does not move."""
    logits = torch.tensor([*T1_PROBS, [0.25] * 4, [0.25] * 4], dtype=torch.float64).log()
    tree = DraftTree([0, 0, 1, 2, 3, 1], [-1, 0, 0, 1, 0, 4])
    law = exit_law(tree, logits, temperature)
    before = exit_law(toy()[0], logits[:4], temperature)
    assert law.w[4:].tolist() == [0, 0] and law.P[4:].tolist() == [0, 0]
    torch.testing.assert_close(law.w[:4], before.w)
    assert torch.equal(law.rho[:4], before.rho) and law.log_P[5] == -math.inf


def test_root_only_and_all_accepted():
    """A root-only tree has w = [1]; a chain of certain edges exits at its leaf, whose residual is its own law."""
    law = exit_law(DraftTree([3], [-1]), torch.randn(1, 7))
    assert law.w.tolist() == [1] and law.coverage == 0 and law.ceiling == 1
    chain = DraftTree([0, 1, 1, 1], [-1, 0, 1, 2])
    rows = [[0, 1.0, 0]] * 3 + [[0.2, 0.3, 0.5]]
    law = exit_law(chain, log_rows(rows))
    assert law.w.tolist() == [0, 0, 0, 1] and law.coverage == 3
    torch.testing.assert_close(law.residual(3), torch.tensor(rows[3], dtype=torch.float64))


@pytest.mark.parametrize("temperature", [0, 1e-8])
def test_greedy_law_is_one_hot(temperature):
    """At a greedy temperature all mass sits on the longest lowest-id argmax match, ties included."""
    tree = DraftTree([0, 0, 1, 2, 1], [-1, 0, 0, 1, 1])
    logits = torch.tensor([[2.0, 2, 1], [0, 1, 1], [9, 0, 0], [0, 0, 1], [1, 0, 1]])
    law = exit_law(tree, logits, temperature)
    assert law.w.tolist() == [0, 0, 0, 0, 1] and law.coverage == 2
    assert law.residual(4).tolist() == [1, 0, 0]


def test_temperature_and_dtype():
    """Temperature divides the logits; bfloat16 rows are worked in float32; logits that require grad are detached."""
    tree, logits = toy()
    hot = exit_law(tree, logits, 2.0)
    root = torch.tensor(T1_PROBS[0], dtype=torch.float64).sqrt()
    torch.testing.assert_close(hot.P[1], root[0] / root.sum())
    noisy = torch.randn(4, 6)
    assert exit_law(tree, noisy.bfloat16(), 1.3).w.dtype == torch.float32
    before = noisy.clone()
    assert not exit_law(tree, noisy.requires_grad_(), 1.3).w.requires_grad
    assert torch.equal(noisy.detach(), before)


@pytest.mark.parametrize("bad_row", [0, 2])
@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "inf")])
@pytest.mark.parametrize("temperature", [0, 1])
def test_bad_logits_name_the_node(bad_row, value, word, temperature):
    """NaN and +inf logits raise and name the node, at internal nodes and at leaves."""
    tree, logits = toy()
    logits[bad_row, 1] = value
    with pytest.raises(ValueError, match=rf"node {bad_row} has a .*{word}"):
        exit_law(tree, logits, temperature)


def test_bad_input_is_refused():
    """Wrong shapes, tokens outside the vocabulary, unnormalised or negative probs, bad nodes and tokens."""
    tree, logits = toy()
    probs = logits.exp()
    with pytest.raises(ValueError, match=r"expected \[4, V\]"):
        exit_law(tree, logits[:3])
    with pytest.raises(ValueError, match="node 3: token 2 is outside the vocabulary of 2"):
        exit_law(tree, logits[:, :2])
    with pytest.raises(ValueError, match="node 2: probabilities sum to"):
        exit_law(tree, probs=probs * torch.tensor([[1.0], [1.0], [0.9], [1.0]]))
    with pytest.raises(ValueError, match=r"node 0: probability -0.1"):
        exit_law(tree, probs=probs - 0.1)
    with pytest.raises(ValueError, match="node 1: probability nan"):
        exit_law(tree, probs=probs.index_fill(0, torch.tensor([1]), math.nan))
    with pytest.raises(ValueError, match="law already"):
        exit_law(tree, probs=probs, temperature=0.5)
    for arguments in ({}, {"logits": logits, "probs": probs}):
        with pytest.raises(ValueError, match="either logits or probs"):
            exit_law(tree, **arguments)
    law = exit_law(tree, logits)
    with pytest.raises(ValueError, match="already has a child"):
        law.one_step_gain(0, 1)
    with pytest.raises(ValueError, match="token 4 is outside"):
        law.one_step_gain(0, 4)
    for node in (-1, 4):
        with pytest.raises(IndexError, match=f"node {node}"):
            law.residual(node)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**31), min_size=0, max_size=5), st.sampled_from([0.0, 0.6, 1.0]))
def test_many_laws_at_once_are_the_laws_one_by_one(seeds, temperature):
    """Roots alone, chains and bushes side by side: no number of one tree reaches another's law."""
    trees, rows = [], []
    for seed in seeds:
        rng = random.Random(seed)
        parents = [-1, *(rng.randrange(node) for node in range(1, rng.randint(1, 9)))]
        tree, _, _ = random_case(parents, 12, seed)
        trees.append(tree)
        rows.append(torch.randn(len(tree), 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    laws = exit_laws(trees, torch.cat([torch.zeros(0, 12, dtype=torch.float64), *rows]), temperature)
    assert len(laws) == len(trees)
    for law, tree, own in zip(laws, trees, rows, strict=True):
        alone = exit_law(tree, own, temperature)
        assert law.tree is tree
        for name in ("P", "rho", "w", "log_P", "edge_log_probs"):
            torch.testing.assert_close(getattr(law, name), getattr(alone, name), rtol=1e-13, atol=0)
        assert torch.equal(law.residual(len(tree) - 1), alone.residual(len(tree) - 1))


def test_many_laws_need_a_row_per_node():
    """Rows that do not add up to the nodes are refused, and so is a draft token outside the vocabulary."""
    trees = [DraftTree([0, 1], [-1, 0]), DraftTree([0, 7], [-1, 0])]
    with pytest.raises(ValueError, match="one row per node: expected \\[4, V\\]"):
        exit_laws(trees, torch.zeros(3, 9))
    with pytest.raises(ValueError, match="token 7 is outside the vocabulary of 5"):
        exit_laws(trees, torch.zeros(4, 5))


@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0])
@pytest.mark.parametrize("at_a_time", [1, 2, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_form_for_a_device_gives_the_law_of_the_form_for_a_cpu(monkeypatch, dtype, at_a_time, temperature):
    """Edges and what is outside them, by one total a row, whatever is weighed at once; bad rows are named by node."""
    generator = torch.Generator().manual_seed(at_a_time)
    tree = DraftTree([0, *range(1, 12)], [-1, 0, 0, 1, 1, 2, 3, 3, 3, 5, 8, 8])
    rows = 12 * torch.randn(len(tree), 40, generator=generator, dtype=dtype)
    rows[2, 30], rows[3, 6] = 400.0, -torch.inf  # a row far above its children, a child of probability 0
    monkeypatch.setattr(row_masses, "rows_at_a_time", lambda rows: at_a_time)
    (child, owner), inner = tree.edges, tree.internal
    token = tree.tokens[child]
    edge, outside = row_masses.edges_and_outside_on_device(rows, temperature, inner, owner, token, inner)
    expected = row_masses.edges_and_outside_on_cpu(rows, temperature, inner, owner.numpy(), token.numpy(), inner)
    close = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-30}
    laws = []
    for edges, rest in ((edge, outside), map(torch.from_numpy, expected)):
        total = rest.index_add(0, owner, edges.exp())
        laws.append((edges.exp() / total[owner], rest / total))
    torch.testing.assert_close(laws[0][0], laws[1][0], **close)
    torch.testing.assert_close(laws[0][1], laws[1][1], **close)
    definition = (rows[inner].double() / temperature).softmax(-1)
    torch.testing.assert_close(laws[0][0], definition[owner, token], rtol=2e-4, atol=1e-30)
    rows[5, 3] = math.nan
    with pytest.raises(ValueError, match="node 5 has a NaN"):
        row_masses.edges_and_outside_on_device(rows, temperature, inner, owner, token, inner)
