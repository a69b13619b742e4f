"""The exact law of every verifier, by enumerating the draws of the production code."""

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from tree_reference import (
    T1_PROBS,
    T1_W,
    assert_same_law,
    chi_square_p,
    enumerate_law,
    exits_in_order,
    joint_law,
    log_rows,
    parent_arrays,
    random_case,
    random_law,
    random_tokens,
    toy,
)
from tree_reference import exit_law as naive_exit_law

from tevlib.trees import predraw as predraw_forms
from tevlib.trees import verifiers
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.rows import DeferredRows, as_rows
from tevlib.trees.verifiers import (
    VERIFIERS,
    descend,
    greedy,
    predraw,
    predraw_reference,
    sequential_residual,
    tev,
    tev_descent,
    tev_parallel,
)

SAMPLERS = [verifier for verifier in VERIFIERS.values() if verifier is not greedy]
BATCHED = (predraw, predraw_reference)  # draw at every node
SEAMS = (
    (verifiers, "categorical"), (verifiers, "uniform"), (predraw_forms, "categorical"), (predraw_forms, "multinomial")
)  # fmt: skip


def exact_law(verifier, tree, logits, monkeypatch, temperature=1.0):
    """{(exit node, bonus): probability} of a verifier; also checks that its path leads to the exit node."""

    def run():
        verdict = verifier(tree, logits, temperature, None)
        assert verdict.path == tree.node_path(verdict.node) and verdict.length == len(verdict.path)
        return verdict.node, verdict.bonus

    laws = (logits.double() / temperature).softmax(-1).tolist()
    pieces = [w for _, w in exits_in_order(tree.tokens.tolist(), tree.parents.tolist(), laws)]
    return enumerate_law(run, monkeypatch, *SEAMS, pieces=pieces)


def small_cases(verifier):
    """Every tree of at most 5 nodes with random tokens and target laws (zeros included), and random larger ones."""
    for seed, parents in enumerate(parent_arrays(5)):
        # Predraw has V ** N outcomes, so its vocabulary shrinks as the tree grows.
        sizes = {1: 6, 2: 6, 3: 6, 4: 4, 5: 3}
        vocabulary = max(sizes[len(parents)] if verifier in BATCHED else 6, max(map(parents.count, parents)))
        yield random_case(parents, vocabulary, seed)
    if verifier not in BATCHED:
        rng = random.Random(1)
        for seed in range(20):
            parents = [-1, *(rng.randrange(max(0, node - 3), node) for node in range(1, 12))]
            yield random_case(parents, 6, seed)


@pytest.mark.parametrize("verifier", SAMPLERS)
def test_joint_law_on_every_small_tree(verifier, monkeypatch):
    """(exit node, bonus) has exactly the law of the target's own continuation, w(v) p_res(a): Theorem 1, Lemma 1."""
    for tree, tokens, probs in small_cases(verifier):
        law = exact_law(verifier, tree, log_rows(probs), monkeypatch)
        assert_same_law(law, joint_law(tokens, tree.parents.tolist(), probs))


@pytest.mark.parametrize("verifier", SAMPLERS)
@pytest.mark.parametrize("temperature", [0.4, 1.7])
def test_joint_law_at_a_temperature(verifier, temperature, monkeypatch):
    """At T != 1 the law is that of softmax(logits / T)."""
    for parents in ([-1, 0, 0, 1], [-1, 0, 1, 2]):
        tree, tokens, probs = random_case(parents, 4, 7)
        heated = [[p ** (1 / temperature) for p in row] for row in probs]
        heated = [[p / math.fsum(row) for p in row] for row in heated]
        law = exact_law(verifier, tree, log_rows(probs), monkeypatch, temperature)
        assert_same_law(law, joint_law(tokens, parents, heated))


@pytest.mark.parametrize("verifier", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_joint_law_in_low_precision(verifier, dtype, monkeypatch):
    """Low-precision logits give the law of those very logits, worked in float32."""
    tree, tokens, _ = random_case([-1, 0, 0, 1], 4, 3)
    logits = (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) * 2).to(dtype)
    law = exact_law(verifier, tree, logits, monkeypatch)
    assert_same_law(law, joint_law(tokens, tree.parents.tolist(), logits.double().softmax(-1).tolist()), 1e-6)


@pytest.mark.parametrize("verifier", SAMPLERS)
def test_two_rounds_equal_two_autoregressive_tokens(verifier, monkeypatch):
    """The first two emitted tokens over two rounds have the autoregressive law, whatever trees the rounds used."""
    vocabulary = 3
    for seed in range(4):
        rng = random.Random(seed)
        laws = {path: random_law(vocabulary, rng) for n in range(7) for path in itertools.product(range(3), repeat=n)}
        trees = {}
        for context in [(), *((a,) for a in range(vocabulary))]:
            parents = rng.choice([[-1], [-1, 0], [-1, 0, 0], [-1, 0, 1], [-1, 0, 0, 1], [-1, 0, 1, 1]])
            trees[context] = DraftTree(random_tokens(parents, vocabulary, rng), parents)

        def block_law(context, trees=trees, laws=laws):
            tree = trees[context]
            rows = [laws[(*context, *tree.path(node))] for node in range(len(tree))]
            law = exact_law(verifier, tree, log_rows(rows), monkeypatch)
            return {(*tree.path(node), bonus): p for (node, bonus), p in law.items()}

        emitted = Counter()
        second_round = {(a,): block_law((a,)) for a in range(vocabulary)}
        for block, p in block_law(()).items():
            if len(block) >= 2:
                emitted[block[:2]] += p
            else:
                for following, q in second_round[block].items():
                    emitted[block[0], following[0]] += p * q
        expected = {(a, b): laws[()][a] * laws[(a,)][b] for a in range(vocabulary) for b in range(vocabulary)}
        assert_same_law(emitted, expected)


@pytest.mark.parametrize("verifier", SAMPLERS)
def test_worked_example(verifier, monkeypatch):
    """The toy tree: exit law [.2, .2, .3, .3], first emitted token ~ p0, mean block length 2.1."""
    tree, logits = toy()
    law = exact_law(verifier, tree, logits, monkeypatch)
    exits, first, length = Counter(), Counter(), 0.0
    for (node, bonus), p in law.items():
        exits[node] += p
        first[[*tree.path(node), bonus][0]] += p
        length += p * (len(tree.path(node)) + 1)
    assert_same_law(exits, dict(enumerate(T1_W)))
    assert_same_law(first, dict(enumerate(T1_PROBS[0])))
    assert length == pytest.approx(2.1)


@pytest.mark.parametrize("verifier", SAMPLERS)
def test_sibling_order_does_not_matter(verifier, monkeypatch):
    """Children listed in the other order leave the law as it is (flexflow-train#1302)."""
    tree = DraftTree([0, 1, 0, 2], [-1, 0, 0, 2])
    rows = [T1_PROBS[0], T1_PROBS[2], T1_PROBS[1], T1_PROBS[3]]
    law = exact_law(verifier, tree, log_rows(rows), monkeypatch)
    renamed = {({0: 0, 1: 2, 2: 1, 3: 3}[node], bonus): p for (node, bonus), p in law.items()}
    assert_same_law(renamed, joint_law([0, 0, 1, 2], [-1, 0, 0, 1], T1_PROBS))


@pytest.mark.parametrize(("order", "second"), [((0, 1), 0.3 / 0.5), ((1, 0), 0.5 / 0.7)])
def test_sequential_residual_renormalises_after_a_rejection(order, second, monkeypatch):
    """Zeroing a rejected child and renormalising is lossless (EAGLE#183): the second child is tested with .3 / .5."""
    tests = []

    def record_and_reject(weights, generator):
        if len(weights) == 2:
            tests.append(float(weights[1] / weights.sum()))
            return torch.tensor(0)
        return weights.argmax()

    monkeypatch.setattr(verifiers, "categorical", record_and_reject)
    tree = DraftTree([0, *order], [-1, 0, 0])
    verdict = sequential_residual(tree, log_rows([T1_PROBS[0]] * 3), 1.0, None)
    assert tests == pytest.approx([T1_PROBS[0][order[0]], second])
    assert (verdict.node, verdict.bonus) == (0, 2)


@pytest.mark.parametrize("verifier", SAMPLERS)
@pytest.mark.parametrize(
    ("tokens", "parents", "rows", "w"),
    [
        # A point-mass draft of a target with p = .6: accepted with .6, not with .6 / q (transformers#32867).
        ([0, 0], [-1, 0], [[0.6, 0.4], [0.5, 0.5]], [0.4, 0.6]),
        # The acceptance of a child is its p, not p / max p (1bit-MONSTER#637).
        ([0, 1], [-1, 0], [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]], [0.7, 0.3]),
        # A two-token chain: the joint law, not token-wise acceptance with another residual (vllm-ascend#7807).
        ([0, 0, 1], [-1, 0, 1], [[0.5, 0.5], [0.8, 0.2], [0.3, 0.7]], [0.5, 0.4, 0.1]),
        ([0, 0, 1], [-1, 0, 1], [[0.5, 0.5], [0.2, 0.8], [0.3, 0.7]], [0.5, 0.1, 0.4]),
        # Depth 1 only (TensorRT-LLM#10323).
        ([0, 0, 1, 2], [-1, 0, 0, 0], [[0.1, 0.2, 0.3, 0.4]] * 4, [0.4, 0.1, 0.2, 0.3]),
        # The children hold all mass: the root never exits.
        ([0, 0, 1], [-1, 0, 0], [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], [0.0, 0.5, 0.5]),
        # A child of probability 0 with a subtree below it.
        ([0, 3, 1, 0], [-1, 0, 1, 0], [T1_PROBS[0], [0.25] * 4, [0.25] * 4, [0.25] * 4], [0.5, 0.0, 0.0, 0.5]),
        # Root only, and a chain accepted with certainty.
        ([0], [-1], [[0.3, 0.7]], [1.0]),
        ([0, 1, 1], [-1, 0, 1], [[0.0, 1.0], [0.0, 1.0], [0.4, 0.6]], [0.0, 0.0, 1.0]),
    ],
)
def test_reported_cases(verifier, tokens, parents, rows, w, monkeypatch):
    """Small inputs of public reports have the exit law worked out by hand, and the exact joint law."""
    law = exact_law(verifier, DraftTree(tokens, parents), log_rows(rows), monkeypatch)
    exits = Counter()
    for (node, _), p in law.items():
        exits[node] += p
    assert_same_law(exits, dict(enumerate(w)))
    assert_same_law(law, joint_law(tokens, parents, rows))


def test_a_root_only_tree_after_a_failed_draft_is_plain_decoding(monkeypatch):
    """The root-only fallback for a NaN draft row emits exactly p0 (vllm#41834)."""
    for verifier in SAMPLERS:
        law = exact_law(verifier, DraftTree([3], [-1]), log_rows(T1_PROBS[:1]), monkeypatch)
        assert_same_law(law, {(0, token): p for token, p in enumerate(T1_PROBS[0]) if p})


def stop_at_depth(limit):
    """Exact, not saturated: below `limit` it draws the bonus from the target instead of looking at the children."""

    def verifier(tree, logits, temperature, generator):
        node = 0
        while True:
            token = int(verifiers.categorical(logits[node].softmax(-1), generator))
            child = tree.child(node, token) if tree.depths[node] < limit else None
            if child is None:
                return verifiers.Verdict(node, tree.node_path(node), token)
            node = child

    return verifier


def stop_at_random(stay):
    """Exact, not saturated: at every node a coin thrown before the target's token decides whether to go on."""

    def verifier(tree, logits, temperature, generator):
        node = 0
        while True:
            go_on = int(verifiers.categorical(torch.tensor([1 - stay, stay]), generator))
            token = int(verifiers.categorical(logits[node].softmax(-1), generator))
            child = tree.child(node, token) if go_on else None
            if child is None:
                return verifiers.Verdict(node, tree.node_path(node), token)
            node = child

    return verifier


def ignore_last_child(tree, logits, temperature, generator):
    """Exact, not saturated: TEV on the tree without its last node."""
    n = max(1, len(tree) - 1)
    return tev(tree.prefix(n), logits[:n], temperature, generator)


@pytest.mark.parametrize(
    "verifier",
    [*SAMPLERS, stop_at_depth(0), stop_at_depth(1), stop_at_random(0.5), stop_at_random(0.9), ignore_last_child],
)
def test_no_exact_verifier_beats_the_ceiling(verifier, monkeypatch):
    """Theorem 1: nodes are accepted with at most P, the mean length is at most 1 + C_p, equal only if saturated."""
    strict = False
    for parents in ([-1, 0], [-1, 0, 0, 1], [-1, 0, 1, 2], [-1, 0, 1, 1]):
        tree, tokens, probs = random_case(parents, 4, 5)
        P, _, w = naive_exit_law(tokens, parents, probs)
        law = exact_law(verifier, tree, log_rows(probs), monkeypatch)
        accepted = [0.0] * len(tree)
        for (node, _), p in law.items():
            for step in tree.node_path(node):
                accepted[step] += p
        assert all(a <= bound + 1e-12 for a, bound in zip(accepted, P, strict=True))
        ceiling = float(exit_law(tree, log_rows(probs)).ceiling)
        assert sum(accepted) <= ceiling + 1e-12
        strict |= sum(accepted) < ceiling - 1e-6
        if abs(sum(accepted) - ceiling) < 1e-12:  # saturated: then the whole exit law is the canonical one
            for node in range(len(tree)):
                assert sum(p for (v, _), p in law.items() if v == node) == pytest.approx(w[node], abs=1e-12)
        # It is exact: the emitted block, prolonged by the target, has the target's law of the first token.
        first = Counter()
        for (node, bonus), p in law.items():
            first[[*tree.path(node), bonus][0]] += p
        assert_same_law(first, dict(enumerate(probs[0])))
    assert strict == (verifier not in SAMPLERS)


def run_rounds(verifier, tree, logits, seeds, rounds, temperature=1.0):
    counts = Counter()
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(rounds // len(seeds)):
            verdict = verifier(tree, logits, temperature, generator)
            counts[verdict.node, verdict.bonus] += 1
    return counts


@pytest.mark.parametrize("verifier", SAMPLERS)
@pytest.mark.parametrize("rounds", [8_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_true_sampler_on_the_toy_tree(verifier, rounds):
    """Chi-square of real draws (fixed seeds) against the exact joint law, and the mean length against 2.1 +- 3 s.e."""
    tree, logits = toy(torch.float32)
    counts = run_rounds(verifier, tree, logits, [0, 1, 2, 3], rounds)
    law = joint_law([0, 0, 1, 2], [-1, 0, 0, 1], T1_PROBS)
    assert chi_square_p(counts, law, rounds) > 1e-3
    lengths = {key: len(tree.path(key[0])) + 1 for key in law}
    mean = sum(counts[key] * lengths[key] for key in counts) / rounds
    variance = sum(p * (lengths[key] - 2.1) ** 2 for key, p in law.items())
    assert abs(mean - 2.1) < 3 * math.sqrt(variance / rounds)


def test_verifiers_agree_in_law_not_in_path():
    """Equal seeds give different verdicts (the verifiers use different draws) but samples of one law."""
    tree, logits = toy(torch.float32)
    verdicts = {}
    distinct = [verifier for verifier in SAMPLERS if verifier is not tev]  # here it is one of the others
    for verifier in distinct:
        generator = torch.Generator().manual_seed(11)
        verdicts[verifier] = [verifier(tree, logits, 1.0, generator) for _ in range(4000)]
    nodes = {verifier: [verdict.node for verdict in many] for verifier, many in verdicts.items()}
    for a, b in itertools.combinations(distinct, 2):
        assert nodes[a] != nodes[b]
    for many in nodes.values():
        assert chi_square_p(Counter(many), dict(enumerate(T1_W)), 4000) > 1e-3


@pytest.mark.parametrize("verifier", SAMPLERS)
def test_same_seed_same_verdict(verifier):
    """A verdict depends on nothing but its arguments and the generator's state."""
    tree, logits = toy(torch.float32)
    again = [run_rounds(verifier, tree, logits, [5], 200) for _ in range(2)]
    assert again[0] == again[1] != run_rounds(verifier, tree, logits, [6], 200)


def test_tev_makes_one_exit_draw_and_one_bonus_draw(monkeypatch):
    """TEV draws over N nodes, then over V tokens of one row; nothing of size N x V is ever drawn from."""
    shapes = []

    def spy(weights, generator):
        shapes.append(tuple(weights.shape))
        return weights.argmax(-1)

    monkeypatch.setattr(verifiers, "categorical", spy)
    tree, logits = toy()
    tev_parallel(tree, logits, 1.0, None)
    assert shapes == [(4,), (4,)]
    tev_parallel(DraftTree([0, 1], [-1, 0]), torch.zeros(2, 9), 1.0, None)
    assert shapes[2:] == [(2,), (9,)]


def law_cases():
    """Small trees and larger ones with their laws, as `small_cases` has them for verifiers that walk."""
    return small_cases(tev_descent)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_descent_divides_the_unit_interval(dtype):
    """w(v) is the measure of u that exits at v: whatever u in v's interval, from end to end, exits at v."""
    margin = 1e-9 if dtype == torch.float64 else 1e-5
    for tree, tokens, probs in law_cases():
        logits, left = as_rows(log_rows(probs, dtype)), 0.0
        for node, w in exits_in_order(tokens, tree.parents.tolist(), probs):
            for u in (left + margin, left + w / 2, left + w - margin):
                if w > 2 * margin and 0 <= u < 1:
                    assert descend(tree, logits, 1.0, u)[0] == node, f"u = {u}"
            left += w
        assert left == pytest.approx(1)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_descent_exits_where_there_is_mass(u, dtype):
    """At both ends of [0, 1) the exit has w > 0 and a residual, rounding or no rounding."""
    for tree, tokens, probs in law_cases():
        node, residual = descend(tree, as_rows(log_rows(probs, dtype)), 1.0, u)
        w = dict(exits_in_order(tokens, tree.parents.tolist(), probs))
        assert w[node] > 0 and residual.sum() > 0
        assert not residual[[tokens[child] for child in tree.children[node]]].any()


@pytest.mark.parametrize("verifier", [tev_parallel, tev_descent])
def test_children_far_below_the_largest_logit(verifier):
    """A row whose children are too unlikely to serve as its reference exits there, with the right bonus."""
    logits = torch.full((3, 8), -300.0)
    logits[:, 5] = 400.0
    verdict = verifier(DraftTree([0, 1, 2], [-1, 0, 1]), logits, 1.0, torch.Generator().manual_seed(0))
    assert (verdict.node, verdict.bonus) == (0, 5)
    logits[0, 1] = 1200.0  # and one whose child holds everything is followed
    verdict = verifier(DraftTree([0, 1, 2], [-1, 0, 1]), logits, 1.0, torch.Generator().manual_seed(0))
    assert (verdict.node, verdict.bonus) == (1, 5)


class Asked(DeferredRows):
    """Deferred rows that keep what they were asked for: a node, or a list of nodes."""

    def __init__(self, tree, logits):
        super().__init__(tree, logits, logits.shape[1], lambda hidden, nodes: hidden)
        self.asked = []

    def __getitem__(self, node):
        self.asked.append(node)
        return super().__getitem__(node)

    def take(self, nodes):
        self.asked.append(list(nodes))
        return super().take(nodes)


def test_rows_that_are_not_needed_are_not_asked_for():
    """The parallel form asks for the internal rows at once, then the exit's; those that walk ask for the rows of the
    path; only batched predraw for all. Equal seeds decide alike on deferred rows and on a tensor."""
    rng = random.Random(0)
    parents = [-1, *(rng.randrange(max(0, node - 5), node) for node in range(1, 30))]
    tree, _, probs = random_case(parents, 9, 4)
    logits = log_rows(probs, torch.float32)
    expected = {
        "tev_parallel": lambda verdict: [tree.internal, verdict.node],
        "predraw": lambda verdict: [list(range(len(tree)))],
        "predraw_reference": lambda verdict: [list(range(len(tree)))],
    }
    for name, verifier in VERIFIERS.items():
        for seed in range(20 if verifier is not greedy else 0):
            rows = Asked(tree, logits)
            verdict = verifier(tree, rows, 1.0, torch.Generator().manual_seed(seed))
            assert rows.asked == expected.get(name, lambda verdict: verdict.path)(verdict), name
            assert verdict == verifier(tree, logits, 1.0, torch.Generator().manual_seed(seed))


def test_a_recorded_law_asks_for_internal_rows_only():
    """`exit_law` of deferred rows, its coverage and w, without one leaf; a residual law asks for its own row."""
    tree, logits = toy()
    rows = Asked(tree, logits)
    law = exit_law(tree, rows)
    assert rows.asked == [[0, 1]] and torch.allclose(law.w, exit_law(tree, logits).w)
    law.residual(3)
    assert rows.asked == [[0, 1], 3]


def test_the_device_form_decides_as_the_law_says():
    """What `tev_parallel` does off the CPU, run on it: chi-square against the exact joint law, and NaN is named."""
    tree, logits = toy(torch.float32)
    generator, counts = torch.Generator().manual_seed(0), Counter()
    for _ in range(4000):
        verdict = verifiers.tev_on_device(tree, as_rows(logits), 1.0, generator)
        assert verdict.path == tree.node_path(verdict.node)
        counts[verdict.node, verdict.bonus] += 1
    assert chi_square_p(counts, joint_law([0, 0, 1, 2], [-1, 0, 0, 1], T1_PROBS), 4000) > 1e-3
    logits[1, 0] = math.nan
    with pytest.raises(ValueError, match="node 1 has a NaN"):
        verifiers.tev_on_device(tree, as_rows(logits), 1.0, generator)


def test_a_draw_from_a_law_at_hand(monkeypatch):
    """`draw_exit` realises the law that it is given, exactly."""
    for tree, tokens, probs in law_cases():
        law = exit_law(tree, log_rows(probs))

        def run(law=law):
            verdict = verifiers.draw_exit(law, None)
            return verdict.node, verdict.bonus

        assert_same_law(enumerate_law(run, monkeypatch, verifiers), joint_law(tokens, tree.parents.tolist(), probs))


def test_tev_chooses_its_form_by_device(monkeypatch):
    """The descent on a CPU, the parallel form elsewhere."""
    monkeypatch.setattr(verifiers, "tev_descent", lambda *_: "descent")
    monkeypatch.setattr(verifiers, "tev_parallel", lambda *_: "parallel")
    tree, logits = toy()
    assert tev(tree, logits, 1.0, None) == "descent" and tev(tree, logits.to("meta"), 1.0, None) == "parallel"


@pytest.mark.parametrize("verifier", SAMPLERS)
def test_more_nodes_times_tokens_than_multinomial_allows(verifier):
    """Budget 1,024 over a vocabulary of 17,000 (17.4 M pairs, above 2^24) works for every verifier."""
    tree = DraftTree([0, *range(1024)], [-1] + [0] * 1024)
    verdict = verifier(tree, torch.zeros(1025, 17_000), 1.0, torch.Generator().manual_seed(0))
    assert verdict.node in range(1025) and verdict.bonus in range(17_000)


@pytest.mark.parametrize("verifier", VERIFIERS.values())
@pytest.mark.parametrize("temperature", [0, 1e-40, 1e-6])
def test_greedy_temperatures_are_the_longest_argmax_match(verifier, temperature):
    """Below the one threshold all verifiers follow the lowest-id argmax, with no generator and no NaN."""
    tree = DraftTree([0, 0, 1, 2, 1], [-1, 0, 0, 1, 1])
    logits = torch.tensor([[3.0, 3, -1], [0, 1, 1], [9, 0, 0], [0, 0, 1], [1, 0, 1]])
    verdict = verifier(tree, logits, temperature, None)
    assert (verdict.node, verdict.path, verdict.bonus) == (4, [0, 1, 4], 0)
    assert verifier(DraftTree([0], [-1]), logits[1:2], temperature, None).bonus == 1


@pytest.mark.parametrize("temperature", [1e-5, 1e-3])
def test_near_greedy_temperatures(temperature):
    """Just above the threshold nothing overflows, and a clear argmax is still followed."""
    tree = DraftTree([0, 0, 1], [-1, 0, 0])
    logits = torch.tensor([[3.0, 2.0, -1.0]] * 3)
    for verifier in SAMPLERS:
        assert verifier(tree, logits, temperature, torch.Generator().manual_seed(0)).path == [0, 1]


def test_greedy_refuses_a_sampling_temperature():
    """The argmax match is another law at T > 0, so it is refused rather than run."""
    tree, logits = toy()
    with pytest.raises(ValueError, match=r"temperature 0 only; got 0\.6"):
        greedy(tree, logits, 0.6)


@pytest.mark.parametrize(
    ("verifier", "temperature"), [*((verifier, 1) for verifier in SAMPLERS), *((v, 0) for v in VERIFIERS.values())]
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_target_rows_name_the_node(verifier, value, temperature):
    """A NaN or +inf target row that a verdict depends on raises and names its node."""
    tree, logits = DraftTree([0, 0], [-1, 0]), torch.tensor([[5.0, -torch.inf], [0.0, value]])
    with pytest.raises(ValueError, match="node 1 has a"):
        verifier(tree, logits, temperature, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("verifier", VERIFIERS.values())
def test_bad_arguments(verifier):
    """Rows that do not fit the tree, tokens outside the vocabulary and invalid temperatures are refused."""
    tree, logits = toy()
    with pytest.raises(ValueError, match="one row per node"):
        verifier(tree, logits[:2], 0, None)
    with pytest.raises(ValueError, match="outside the vocabulary of 2"):
        verifier(tree, logits[:, :2], 0, None)
    for temperature in (-1, math.nan):
        with pytest.raises(ValueError, match="temperature must be"):
            verifier(tree, logits, temperature, None)
