"""TEV in fixed shapes: the exact law, whatever the padding, and nothing that waits for the device."""

import math
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from tree_reference import (
    PathEnumerator,
    assert_same_law,
    joint_law,
    log_rows,
    parent_arrays,
    random_case,
    toy,
)

from tevlib.trees import fixed_shape
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.fixed_shape import exit_draw
from tevlib.trees.verifiers import greedy

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def arguments(tree, logits, padding=0, height=None):
    """`exit_draw`'s arguments up to the rows, with padding nodes whose rows are NaN, and a height to spare."""
    n = len(tree)
    tokens = torch.cat([tree.tokens, torch.full((padding,), 10**6)])
    parents = torch.cat([tree.parents, torch.full((padding,), -1)])
    ancestors = torch.eye(n + padding, dtype=torch.bool)
    ancestors[:n, :n] = tree.ancestors
    rows = torch.cat([logits, logits.new_full((padding, logits.shape[1]), math.nan)])
    return tokens, parents, ancestors, rows, tree.height if height is None else height


def draw(tree, logits, temperature=1.0, uniforms=HALF, padding=0, height=None, inner=None):
    *tensors, height = arguments(tree, logits, padding, height)
    if inner is not None:  # those with children, the root again, and a leaf
        inner = torch.tensor([*tree.internal, 0, *([len(tree) - 1] * inner)])
    return exit_draw(*tensors, temperature, uniforms, height, inner)


def cases():
    """Every tree of at most 5 nodes and some of 12, random tokens, laws with zeros."""
    for seed, parents in enumerate(parent_arrays(5)):
        yield random_case(parents, max(6, max(map(parents.count, parents))), seed)
    rng = random.Random(3)
    for seed in range(10):
        yield random_case([-1, *(rng.randrange(max(0, node - 3), node) for node in range(1, 12))], 6, seed)


@pytest.mark.parametrize("inner", [None, 1])
@pytest.mark.parametrize("padding", [0, 3])
def test_weights_are_the_exit_law(padding, inner):
    """P and w are those of `exit_law`, and padding nodes, whose rows are NaN, have none."""
    for tree, _, probs in cases():
        law = exit_law(tree, log_rows(probs))
        drawn = draw(tree, log_rows(probs), padding=padding, inner=inner)
        assert torch.allclose(drawn.P[: len(tree)], law.P, atol=1e-14)
        assert torch.allclose(drawn.w[: len(tree)], law.w, atol=1e-14)
        assert not drawn.w[len(tree) :].any() and drawn.finite


def fixed_shape_law(tree, logits, temperature, monkeypatch, **shapes):
    """{(node, bonus): probability} of `exit_draw`, exact, by enumerating its two draws."""
    enumerator, law = PathEnumerator(), {}
    with monkeypatch.context() as patch:
        patch.setattr(fixed_shape, "inverse_cdf", lambda weights, uniforms: enumerator.categorical(weights, None))
        for probability, drawn in enumerator.paths(lambda: draw(tree, logits, temperature, **shapes)):
            outcome = int(drawn.node), int(drawn.bonus)
            law[outcome] = law.get(outcome, 0.0) + probability
            assert drawn.path[: drawn.length].tolist() == tree.node_path(outcome[0])
            assert drawn.path[drawn.length :].unique().tolist() in ([], [outcome[0]])
    return law


@pytest.mark.parametrize("shapes", [{}, {"padding": 2, "height": 7}, {"inner": 0}, {"inner": 2, "padding": 1}])
def test_joint_law_on_every_small_tree(shapes, monkeypatch):
    """(exit node, bonus) has exactly the law of the target's own continuation, padded or not."""
    for tree, tokens, probs in cases():
        law = fixed_shape_law(tree, log_rows(probs), 1.0, monkeypatch, **shapes)
        assert_same_law(law, joint_law(tokens, tree.parents.tolist(), probs))


@pytest.mark.parametrize("temperature", [0.4, 1.7])
def test_joint_law_at_a_temperature(temperature, monkeypatch):
    """At T != 1 the law is that of softmax(logits / T)."""
    tree, tokens, probs = random_case([-1, 0, 0, 1], 4, 7)
    heated = [[p ** (1 / temperature) for p in row] for row in probs]
    heated = [[p / math.fsum(row) for p in row] for row in heated]
    law = fixed_shape_law(tree, log_rows(probs), temperature, monkeypatch)
    assert_same_law(law, joint_law(tokens, tree.parents.tolist(), heated))


def test_equal_uniforms_give_equal_draws_whatever_the_shape():
    """A round padded to a larger shape decides what it decided unpadded (a root alone, too)."""
    generator = torch.Generator().manual_seed(0)
    for tree, _, probs in [*cases(), (DraftTree([0], [-1]), [0], [[0.3, 0.7]])]:
        uniforms = torch.rand(2, dtype=torch.float64, generator=generator)
        logits = log_rows(probs, torch.float32)
        for temperature in (1.0, 0.6, 0):
            plain = draw(tree, logits, temperature, uniforms)
            for inner in (None, 0, 3):
                padded = draw(tree, logits, temperature, uniforms, padding=4, height=tree.height + 3, inner=inner)
                assert (plain.node, plain.bonus, plain.length) == (padded.node, padded.bonus, padded.length)
                assert padded.path[: len(plain.path)].tolist() == plain.path.tolist()


def test_greedy_is_the_longest_argmax_match():
    """At a greedy temperature node, path and bonus are those of `greedy`, ties included."""
    for seed, (tree, _, _) in enumerate(cases()):
        rows = torch.randint(0, 4, (len(tree), 6), generator=torch.Generator().manual_seed(seed)).float()
        verdict, drawn = greedy(tree, rows, 0), draw(tree, rows, 0, padding=1)
        assert (int(drawn.node), int(drawn.bonus), int(drawn.length)) == (verdict.node, verdict.bonus, verdict.length)
        assert drawn.path[: drawn.length].tolist() == verdict.path and drawn.w[verdict.node] == 1


@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-53])
def test_extreme_uniforms_find_mass(extreme):
    """u at either end of [0, 1) exits where there is mass, with a bonus that has mass and is no child."""
    for tree, tokens, probs in cases():
        law = joint_law(tokens, tree.parents.tolist(), probs)
        for dtype in (torch.float32, torch.float64):
            drawn = draw(tree, log_rows(probs, dtype), uniforms=torch.full((2,), extreme, dtype=torch.float64))
            assert (int(drawn.node), int(drawn.bonus)) in law


def test_children_that_hold_all_but_a_sliver():
    """rho keeps its digits where the children hold nearly everything, and is never below 0."""
    logits = torch.tensor([[0.0, 0.0, -60.0]]).repeat(3, 1)
    drawn = draw(DraftTree([0, 0, 1], [-1, 0, 0]), logits)
    assert float(drawn.w[0]) == pytest.approx(math.exp(-60) / 2, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0])
def test_unusable_rows_are_flagged(value, temperature):
    """A row that mattered and is no law clears `finite`; one that is never reached does not."""
    tree, logits = DraftTree([0, 0, 1, 1], [-1, 0, 0, 1]), torch.zeros(4, 3)
    logits[:, 0] = 100.0
    bad = logits.clone()
    bad[1] = value
    assert draw(tree, logits, temperature).finite and not draw(tree, bad, temperature).finite
    bad = logits.clone()
    bad[2] = value
    assert draw(tree, bad, temperature).finite


class NoHost(TorchDispatchMode):
    """Refuses operations whose result the host must see, or whose shape depends on data."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "item", "bincount")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(self.REFUSED), f"{name} waits for the device"
        kwargs = kwargs or {}
        if name in ("_to_copy", "copy_") and isinstance(args[0], torch.Tensor):
            source = args[1] if name == "copy_" else args[0]
            target = args[0].device if name == "copy_" else kwargs.get("device") or args[0].device
            assert source.device.type == torch.device(target).type, f"{name} moves data between devices"
        return func(*args, **kwargs)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0])
def test_nothing_waits_for_the_device(temperature):
    """No scalar is read, no shape depends on data, nothing is copied to the host: on a CPU or off it."""
    tree, logits = toy(torch.float32)
    *tensors, height = arguments(tree, logits, padding=2)
    off = [x.to("meta") for x in [*tensors, HALF]]
    inner = torch.tensor(tree.internal).to("meta")
    with NoHost():
        exit_draw(*tensors, temperature, HALF, height)
        drawn = exit_draw(*off[:4], temperature, off[4], height)
        exit_draw(*off[:4], temperature, off[4], height, inner)
    assert {field.device.type for field in drawn} == {"meta"}
    assert drawn.path.shape == (height + 1,) and drawn.w.shape == (len(tree) + 2,)


def test_the_dispatch_check_has_teeth():
    """A read of one number is refused."""
    with pytest.raises(AssertionError, match="waits for the device"), NoHost():
        float(torch.ones(3).sum())


def test_it_is_one_graph():
    """It traces without a break, so that it can be compiled or captured whole."""
    tree, logits = toy(torch.float32)
    *tensors, height = arguments(tree, logits)
    compiled = torch.compile(exit_draw, fullgraph=True, backend="eager")
    expected, got = exit_draw(*tensors, 0.6, HALF, height), compiled(*tensors, 0.6, HALF, height)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
