"""The loss at the head against whole logits and torch's own functions, and its gradient by finite differences."""

import math

import pytest
import torch
import torch.nn.functional as F

from tevlib.training.head_loss import (
    CROSS_ENTROPY,
    PARTS,
    REVERSE_KL,
    TWO_OUTCOME_KL,
    Entries,
    Mixture,
    divergence,
    head_loss,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def example(rows: int, vocab: int = 50, width: int = 16, n: int = 40):
    """Rows, a head, entries of all parts and kinds (several to a row, some twice the same token), and laws of rows."""
    hidden = torch.randn(rows, width, generator=generator(), dtype=torch.float64, requires_grad=True)
    head = torch.randn(vocab, width, generator=generator(1), dtype=torch.float64) * 0.3
    some = torch.randint(rows, (n,), generator=generator(2))
    tokens = torch.randint(vocab, (n,), generator=generator(3))
    some[1], tokens[1] = some[0], tokens[0]
    weights = torch.rand(n, generator=generator(4), dtype=torch.float64)
    teacher = torch.rand(n, generator=generator(5), dtype=torch.float64)
    parts = torch.tensor([i % 3 for i in range(n)])
    kinds = torch.tensor([[CROSS_ENTROPY, TWO_OUTCOME_KL, REVERSE_KL][i // 2 % 3] for i in range(n)])
    one = Entries(some, tokens, weights, parts, kinds, teacher)
    entries = Entries.join([one])
    laws = torch.rand(3, vocab, generator=generator(6), dtype=torch.float64)
    mixture = Mixture(torch.tensor(sorted({0, rows // 2, rows - 1})), laws[: len({0, rows // 2, rows - 1})])
    return hidden, head, entries, mixture


def naive(hidden, head, entries, mixture, softcap=None):
    """The parts, entry by entry, from whole log-softmaxed logits."""
    logits = hidden @ head.T
    log_q = torch.log_softmax(logits if softcap is None else softcap * torch.tanh(logits / softcap), dim=-1)
    parts = [torch.zeros((), dtype=torch.float64) for _ in PARTS]
    for e in range(len(entries.rows)):
        value, p = log_q[entries.rows[e], entries.tokens[e]], entries.teacher[e]
        kind = int(entries.kinds[e])
        if kind == CROSS_ENTROPY:
            cost = -value
        elif kind == TWO_OUTCOME_KL:
            q = value.exp()
            cost = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        else:
            ratio = p / value.exp()
            cost = ratio - ratio.log() - 1
        if kind != CROSS_ENTROPY:
            cost = cost.clamp(max=10.0)
        parts[int(entries.parts[e])] = parts[int(entries.parts[e])] + entries.weights[e] * cost
    for row, masses in zip(mixture.rows.tolist(), mixture.masses, strict=True):
        parts[PARTS.index("gain")] = parts[PARTS.index("gain")] - (masses * log_q[row]).sum()
    return torch.stack(parts)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("rows", [1, 7, 64, 150])
def test_value_and_gradient_equal_the_naive_sums(rows, softcap):
    """Chunked, with several entries on a row, the same token twice, every kind, and laws beside them; through a
    soft-cap where the target's logits have one."""
    hidden, head, entries, mixture = example(rows)
    total, parts = head_loss(hidden, head, entries, mixture, softcap)
    expected = naive(hidden, head, entries, mixture, softcap)
    torch.testing.assert_close(parts, expected.detach())
    torch.testing.assert_close(total, expected.sum())
    mine = torch.autograd.grad(total, hidden)[0]
    torch.testing.assert_close(mine, torch.autograd.grad(expected.sum(), hidden)[0])


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_gradient_by_finite_differences(softcap):
    """gradcheck in float64, all kinds and laws together."""
    hidden, head, entries, mixture = example(5, vocab=11, width=6, n=20)
    assert torch.autograd.gradcheck(lambda h: head_loss(h, head, entries, mixture, softcap)[0], (hidden,))


def test_cross_entropy_is_torch_s():
    """Entries of one token a row are the weighted cross entropy."""
    hidden, head, _, _ = example(70)
    labels = torch.randint(50, (70,), generator=generator(2))
    weights = torch.rand(70, generator=generator(3), dtype=torch.float64)
    weights[::5] = 0
    entries = Entries.of("token", torch.arange(70), labels, weights)
    assert len(entries.rows) == int((weights > 0).sum())
    expected = (weights * F.cross_entropy(hidden @ head.T, labels, reduction="none")).sum()
    torch.testing.assert_close(head_loss(hidden, head, entries)[0], expected)


def test_scaling_reaches_the_part_it_names():
    """A factor of one part changes that part alone."""
    hidden, head, entries, _ = example(9)
    before = head_loss(hidden, head, entries)[1]
    factors = torch.ones(len(PARTS), dtype=torch.float64)
    factors[1] = 3.0
    after = head_loss(hidden, head, entries.scaled(factors))[1]
    torch.testing.assert_close(after, before * factors)


def test_nothing_to_learn_is_zero_with_a_gradient():
    """No entries: a loss of 0 that can be stepped on."""
    hidden = torch.randn(4, 8, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    total, _ = head_loss(hidden, torch.randn(9, 8), Entries.of("token", none, none, torch.zeros(0)))
    total.backward()
    assert float(total.detach()) == 0 and not hidden.grad.any()


def test_impossible_tokens_cost_much_but_not_infinitely():
    """A label of no probability costs 87 nats in float32; Draft-OPD's divergences stop at 10, without a pull."""
    q = torch.tensor([0.0, 0.0, 0.0])
    kinds = torch.tensor([CROSS_ENTROPY, TWO_OUTCOME_KL, REVERSE_KL])
    value, slope = divergence(q, kinds, torch.tensor([0.9, 0.9, 0.9]))
    assert 87 < float(value[0]) < 88 and bool(value.isfinite().all()) and bool((value[1:] <= 10).all())
    assert slope[1:].tolist() == [0.0, 0.0]


def test_divergences_vanish_where_draft_and_target_agree():
    """Both are 0 with no slope at q = p, and positive beside it."""
    p = torch.tensor([0.3, 0.3], dtype=torch.float64)
    kinds = torch.tensor([TWO_OUTCOME_KL, REVERSE_KL])
    value, slope = divergence(p, kinds, p)
    assert value.tolist() == pytest.approx([0, 0]) and slope.tolist() == pytest.approx([0, 0])
    for q in (0.1, 0.6):
        value, slope = divergence(torch.full_like(p, q), kinds, p)
        assert bool((value > 0).all()) and all(math.copysign(1, s) == math.copysign(1, q - 0.3) for s in slope.tolist())
