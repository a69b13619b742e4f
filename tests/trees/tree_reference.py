"""Slow, obvious references for `tevlib.trees`: plain Python, exhaustive enumeration, no cleverness."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import numpy as np
import torch

from tevlib.trees.draft_tree import DraftTree

T1_PARENTS, T1_TOKENS = [-1, 0, 0, 1], [0, 0, 1, 2]
T1_PROBS = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.6, 0.1], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]]
T1_W = [0.2, 0.2, 0.3, 0.3]


def toy(dtype=torch.float64):
    """The worked example: tree of four nodes over four tokens, and its logits."""
    return DraftTree(T1_TOKENS, T1_PARENTS), torch.tensor(T1_PROBS, dtype=dtype).log()


def children_of(parents):
    """Children of each node, by scanning all parents."""
    return [[child for child, parent in enumerate(parents) if parent == node] for node in range(len(parents))]


def exit_law(tokens, parents, probs):
    """P, rho, w as lists, straight from Eqs. 2 and 4."""
    P, rho = [], []
    for node, kids in enumerate(children_of(parents)):
        P.append(1.0 if node == 0 else P[parents[node]] * probs[parents[node]][tokens[node]])
        rho.append(1.0 - math.fsum(probs[node][tokens[kid]] for kid in kids))
    return P, rho, [a * b for a, b in zip(P, rho, strict=True)]


def joint_law(tokens, parents, probs):
    """{(exit node, bonus): probability}, by following every target continuation until it leaves the tree."""
    law = {}
    kids = children_of(parents)

    def walk(node, mass):
        for token, p in enumerate(probs[node]):
            if p == 0:
                continue
            match = [kid for kid in kids[node] if tokens[kid] == token]
            if match:
                walk(match[0], mass * p)
            else:
                law[node, token] = law.get((node, token), 0.0) + mass * p

    walk(0, 1.0)
    return law


class PathEnumerator:
    """Runs randomised code once per path of its categorical draws, with the probability of each path.

    Its `categorical` stands in for the production one: the first pass takes the first possible outcome of every draw
    and schedules the other outcomes, until no path is left.
    """

    def __init__(self):
        self.pending = [()]

    def paths(self, run):
        """Yields (probability, result of run()) over all paths."""
        while self.pending:
            self.script, self.taken, self.probability = self.pending.pop(), (), 1.0
            result = run()
            yield self.probability, result

    def categorical(self, weights, generator):
        rows = weights.double().reshape(-1, weights.shape[-1]).tolist()
        return torch.tensor([self._draw(row) for row in rows]).reshape(weights.shape[:-1])

    def _draw(self, row):
        support = [index for index, weight in enumerate(row) if weight > 0]
        assert support, "a draw without any weight"
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice = support[0]
            self.pending.extend((*self.taken, other) for other in support[1:])
        self.taken += (choice,)
        self.probability *= row[choice] / math.fsum(row)
        return choice


def enumerate_law(run, monkeypatch, *seams, pieces=()):
    """{result: probability} of `run()`, exact, with all draws enumerated.

    seams: (module, name) of every function that draws, `name(weights, generator)`, or a module for its `categorical`;
    `uniform(generator)` is enumerated as the middle of one of `pieces`, lengths that divide [0, 1).
    """
    enumerator = PathEnumerator()
    law = {}

    def uniform(generator):
        weights = torch.tensor(list(pieces), dtype=torch.float64)
        piece = int(enumerator.categorical(weights, generator))
        return float(weights[:piece].sum() + weights[piece] / 2)

    with monkeypatch.context() as patch:
        for seam in seams:
            module, name = seam if isinstance(seam, tuple) else (seam, "categorical")
            patch.setattr(module, name, uniform if name == "uniform" else enumerator.categorical)
        for probability, result in enumerator.paths(run):
            law[result] = law.get(result, 0.0) + probability
    return law


def exits_in_order(tokens, parents, probs):
    """[(node, w)] in depth-first order, a node after all that is below it."""
    _, _, w = exit_law(tokens, parents, probs)
    kids = children_of(parents)

    def below(node):
        return [exit for kid in kids[node] for exit in below(kid)] + [(node, max(0.0, w[node]))]

    return below(0)


def assert_same_law(law, expected, tolerance=1e-12):
    """AssertionError unless two {outcome: probability} agree everywhere to `tolerance`."""
    for outcome in sorted(set(law) | set(expected)):
        got, want = law.get(outcome, 0.0), expected.get(outcome, 0.0)
        assert abs(got - want) <= tolerance, f"{outcome}: probability {got}, expected {want}"


def chi_square_p(counts, law, n):
    """p-value of observed {outcome: count} under {outcome: probability}; 0 when an impossible outcome was seen."""
    if any(law.get(outcome, 0.0) == 0 for outcome in counts):
        return 0.0
    cells = [(counts.get(outcome, 0), n * p) for outcome, p in law.items() if p > 0]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    freedom = len(cells) - 1
    if freedom == 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def heap_tree(log_probs, budget, depth_limit=None):
    """[(score, path tokens)] of the best prefixes in order: a heap that pops a node, pushes its sibling and its child.

    Order: score, then depth, then the parent's place, then the place in the row (log-probability, then token id).
    Scores are float sums in the dtype of `log_probs`, -inf prefixes are never popped.
    """
    depth_limit = len(log_probs) if depth_limit is None else min(depth_limit, len(log_probs))
    ranked = [sorted(range(log_probs.shape[1]), key=lambda a, row=row: (-float(row[a]), a)) for row in log_probs]
    popped = []
    heap = []

    def push(depth, parent_key, parent_score, path, rank):
        if depth < depth_limit and rank < len(ranked[depth]):
            token = ranked[depth][rank]
            score = parent_score + log_probs[depth, token]
            if score > -math.inf:
                key = (-float(score), depth, parent_key, rank)
                heapq.heappush(heap, (key, score, [*path, token], parent_key, parent_score))

    push(0, (), log_probs.new_zeros(()), [], 0)
    while heap and len(popped) < budget:
        key, score, path, parent_key, parent_score = heapq.heappop(heap)
        popped.append((float(score), path))
        push(len(path) - 1, parent_key, parent_score, path[:-1], key[3] + 1)
        push(len(path), key, score, path, 0)
    return popped


def all_prefixes(law, vocabulary, depth):
    """{path: target probability} of every prefix up to `depth` by brute force; `law(path)` gives the next-token law."""
    prefixes = {}
    for length in range(1, depth + 1):
        for path in itertools.product(range(vocabulary), repeat=length):
            prefixes[path] = math.prod(law(path[:i])[path[i]] for i in range(length))
    return prefixes


def parent_arrays(max_nodes):
    """Every parent array of 1 to `max_nodes` nodes (so every tree shape, in every node order)."""
    for n in range(1, max_nodes + 1):
        for choice in itertools.product(*(range(node) for node in range(1, n))):
            yield [-1, *choice]


def random_tokens(parents, vocabulary, rng):
    """Tokens with distinct siblings for a parent array, or None when a node has more children than tokens."""
    tokens = [rng.randrange(vocabulary)] + [0] * (len(parents) - 1)
    for kids in children_of(parents):
        if len(kids) > vocabulary:
            return None
        for kid, token in zip(kids, rng.sample(range(vocabulary), len(kids)), strict=True):
            tokens[kid] = token
    return tokens


def random_law(vocabulary, rng, zeros=0.25):
    """A random next-token law as a list; each entry is 0 with probability `zeros`, but never all of them."""
    weights = [0.0 if rng.random() < zeros else rng.expovariate(1.0) for _ in range(vocabulary)]
    weights[rng.randrange(vocabulary)] += 0.5
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def random_case(parents, vocabulary, seed):
    """A tree of the given shape with random tokens and target laws: (tree, tokens, probs), or None if none fits."""
    rng = random.Random(seed)
    tokens = random_tokens(parents, vocabulary, rng)
    if tokens is None:
        return None
    return DraftTree(tokens, parents), tokens, [random_law(vocabulary, rng) for _ in parents]


def log_rows(probs, dtype=torch.float64):
    """Probabilities as logits [N, V]."""
    return torch.tensor(probs, dtype=dtype).log()


def ddtree_by_heap(log_probs, budget, root_token):
    """Tokens, parents, depths, child maps and visibility of the best prefixes the way public DDTree code builds them.

    `torch.topk` per row (which leaves ties open), a Python heap of (-score, ranks, parent, depth, rank, score) with
    float64 sums, where a sibling is its predecessor's score less one entry plus the next; then a visibility row per
    node. The clock's reference: plain Python, and all it returns is used by a decode loop.
    """
    depth_limit, k = len(log_probs), min(budget, log_probs.shape[-1])
    tokens, parents, depths, children = [root_token], [-1], [0], [{}]
    if budget > 0 and depth_limit > 0:
        values, ids = log_probs.topk(k, dim=-1)
        values, ids = values.tolist(), ids.tolist()
        heap = [(-values[0][0], (0,), 0, 1, 0, values[0][0])]
        while heap and len(tokens) <= budget:
            _, ranks, parent, depth, rank, score = heapq.heappop(heap)
            node, token = len(tokens), ids[depth - 1][rank]
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
            children.append({})
            children[parent][token] = node
            if rank + 1 < k:
                sibling = score - values[depth - 1][rank] + values[depth - 1][rank + 1]
                heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), parent, depth, rank + 1, sibling))
            if depth < depth_limit:
                child = score + values[depth][0]
                heapq.heappush(heap, (-child, (*ranks, 0), node, depth + 1, 0, child))
    visible = np.zeros((len(tokens), len(tokens)), dtype=bool)
    visible[0, 0] = True
    for node in range(1, len(tokens)):
        visible[node, :node] = visible[parents[node], :node]
        visible[node, node] = True
    return (torch.tensor(tokens), torch.tensor(parents), torch.tensor(depths), children, torch.from_numpy(visible))
