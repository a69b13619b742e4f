"""Temperature, filters, ties and the categorical draw."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_reference import chi_square_p

from tevlib.trees import sampling
from tevlib.trees.sampling import argmax_lowest, categorical, filter_logits, is_greedy, sample, target_log_probs
from tevlib.trees.sampling import target_probs as probs_at


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0, 1e-40, 1e-8, 1e-6])
@pytest.mark.parametrize("logits", [[3.0, 2.0, -1.0], [3.0, 3.0, -1.0]])
def test_below_the_threshold_is_the_lowest_argmax(temperature, logits):
    """Tiny temperatures are greedy on every path, with no overflow or NaN; a tie goes to the lowest id."""
    rows = torch.tensor([logits])
    assert is_greedy(temperature)
    assert target_log_probs(rows, temperature).tolist() == [[0.0, -math.inf, -math.inf]]
    assert sample(rows, temperature, generator()).tolist() == [0]
    assert torch.equal(filter_logits(rows, temperature, top_p=0.1, top_k=1), rows)


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.3, 1.0, 7.0])
def test_above_the_threshold_is_a_softmax(temperature):
    """From the threshold on the law is softmax(logits / T), to float32 precision even for large logits at small T."""
    logits = torch.tensor([40.0, 39.9999, 3.0, -math.inf], dtype=torch.float64)
    exact = ((logits - 40) / temperature).softmax(-1)
    assert not is_greedy(temperature)
    torch.testing.assert_close(probs_at(logits, temperature), exact)
    single = probs_at(logits.float(), temperature).double()
    rounded = ((logits.float().double() - 40) / temperature).softmax(-1)
    torch.testing.assert_close(single, rounded, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(target_log_probs(logits, temperature).exp(), exact)


@pytest.mark.parametrize("temperature", [-1, -1e-9, math.nan, math.inf])
def test_invalid_temperature(temperature):
    """Negative, NaN and infinite temperatures are refused."""
    with pytest.raises(ValueError, match="temperature"):
        is_greedy(temperature)


def test_half_precision_is_raised_to_float32():
    """bfloat16 logits give float32 probabilities that sum to 1."""
    probs = probs_at(torch.randn(3, 1000, generator=generator()).bfloat16(), 1.0)
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 70), (1, 49152)])
def test_ties_go_to_the_lowest_id(shape):
    """argmax picks the lowest of equal maxima whatever the shape or memory layout (pytorch#17738)."""
    assert not argmax_lowest(torch.zeros(shape)).any()
    many = torch.randint(0, 3, shape, generator=generator()).float()
    first = (many == many.amax(-1, keepdim=True)).long().mul(torch.arange(shape[-1], 0, -1)).argmax(-1)
    assert torch.equal(argmax_lowest(many), first)
    strided = many.unsqueeze(0).transpose(0, -1).contiguous().transpose(0, -1)[0]
    assert torch.equal(argmax_lowest(strided), first)
    assert torch.equal(argmax_lowest(many.bfloat16()), first)


@pytest.mark.parametrize(
    ("bad", "word"), [([0.0, math.nan], "NaN"), ([0.0, math.inf], r"\+inf"), ([-math.inf] * 2, "no finite")]
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_bad_rows_are_named(bad, word, temperature):
    """NaN, +inf and all -inf rows raise, naming the row."""
    rows = torch.tensor([[0.0, 1.0], bad])
    for law in (probs_at, target_log_probs, lambda x, t: sample(x, t, generator())):
        with pytest.raises(ValueError, match=f"row 1 has (a |){word}"):
            law(rows, temperature)


def naive_filter(logits, temperature, top_p, top_k):
    """Kept token ids of one row: by definition, ties with the last kept token included."""
    order = sorted(range(len(logits)), key=lambda a: -logits[a])
    keep = [a for a in order if logits[a] > -math.inf]
    if top_k:
        keep = [a for a in keep if logits[a] >= logits[order[min(top_k, len(order)) - 1]]]
    weights = [math.exp((logits[a] - logits[keep[0]]) / temperature) for a in keep]
    mass = 0.0
    for weight in weights:
        mass += weight / math.fsum(weights)
        if mass >= top_p - 1e-12:
            return {a for a, w in zip(keep, weights, strict=True) if w >= weight}
    return set(keep)


@settings(max_examples=150, deadline=None)
@given(
    # Distinct logits at least 1/8 apart keep the nucleus boundary away from rounding.
    rows=st.lists(st.lists(st.integers(-40, 40), min_size=6, max_size=6), min_size=1, max_size=3),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.05, 0.3, 0.6137, 0.9, 1.0]),
    top_k=st.integers(0, 8),
)
def test_filters_keep_the_defined_set(rows, temperature, top_p, top_k):
    """top-k, then top-p at that temperature, keep exactly the tokens that the definition keeps, row by row."""
    logits = torch.tensor(rows, dtype=torch.float64) / 8
    filtered = filter_logits(logits, temperature, top_p, top_k)
    for row, out in zip(logits.tolist(), filtered, strict=True):
        kept = naive_filter(row, temperature, top_p, top_k)
        assert set(out.isfinite().nonzero().flatten().tolist()) == kept
    assert torch.equal(filtered[filtered.isfinite()], logits[filtered.isfinite()])
    assert torch.equal(filter_logits(logits[0], temperature, top_p, top_k), filtered[0])


def test_filters_on_a_large_flat_row():
    """A nucleus wider than the first look (flat rows) still holds the asked mass, and barely more."""
    logits = torch.randn(2, 5000, generator=generator(), dtype=torch.float64) * 0.01
    probs = logits.softmax(-1)
    kept = filter_logits(logits, 1.0, top_p=0.95).isfinite()
    mass = (probs * kept).sum(-1)
    smallest = probs.masked_fill(~kept, 1).amin(-1)
    assert (mass >= 0.95).all() and (mass - smallest < 0.95).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_nucleus_that_is_met_exactly_takes_no_further_token(n):
    """Tokens whose mass is top_p to the last bit are enough: "reaches" is not "passes"."""
    logits = torch.tensor([0.3, 2.0, -1.0, 1.1], dtype=torch.float64)
    order = logits.argsort(descending=True)
    top_p = float(logits.softmax(-1)[order].cumsum(0)[n - 1])
    kept = filter_logits(logits, 1.0, top_p=top_p).isfinite().nonzero().flatten().tolist()
    assert kept == sorted(order[:n].tolist())


@pytest.mark.parametrize("arguments", [{"top_p": 0}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_k": -1}])
def test_bad_filters(arguments):
    """top_p outside (0, 1] and a negative top_k are refused."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        filter_logits(torch.zeros(4), 1.0, **arguments)


@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 600, 1024])
def test_the_draw_inverts_the_cumulative_weights(k, monkeypatch):
    """Sweeping the uniform over a fine grid gives each index its weight, in order, on both sides of the block size."""
    weights = torch.rand(k, generator=generator(k), dtype=torch.float64)
    weights[:: max(2, k // 7)] = 0
    weights[-1] += 0.1
    n = 20_000
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    monkeypatch.setattr(sampling.torch, "rand", lambda *shape, **_: grid.reshape(shape))
    drawn = categorical(weights.expand(n, k), generator())
    assert (drawn.diff() >= 0).all()
    frequency = torch.bincount(drawn, minlength=k) / n
    assert (frequency - weights / weights.sum()).abs().max() <= 1.01 / n
    assert not frequency[weights == 0].any()


@pytest.mark.parametrize("k", [3, 700])
@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_zero_weights_are_never_drawn(k, u, monkeypatch):
    """The ends of the uniform fall on the first and last positive weights, not on zeros before or after them."""
    weights = torch.zeros(k)
    weights[1] = weights[k // 2] = 1 / 3
    monkeypatch.setattr(sampling.torch, "rand", lambda *shape, **_: torch.full(shape, u, dtype=torch.float64))
    assert int(categorical(weights, generator())) == (1 if u == 0 else k // 2)


def test_categorical_needs_weight():
    """A row without any weight, or with NaN ("total <= 0" is False for NaN), raises instead of returning token 0."""
    for bad in ([0.0, 0.0], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="positive weight"):
            categorical(torch.tensor([[1.0, 1.0], bad]), generator())


def test_more_categories_than_multinomial_allows():
    """A draw over 2^24 + 1 categories works, and its tail is reachable (pytorch#43115)."""
    weights = torch.zeros(2**24 + 1)
    weights[-1] = 1
    assert int(categorical(weights, generator())) == 2**24


@pytest.mark.parametrize("v", [5, 400])
def test_sample_follows_the_law(v):
    """Chi-square of 40,000 draws at T = 0.7 against the softmax law, with rows drawn independently."""
    logits = torch.randn(v, generator=generator(1)) * 1.5
    law = dict(enumerate((logits.double() / 0.7).softmax(-1).tolist()))
    n = 40_000
    drawn = sample(logits.expand(n, v), 0.7, generator(2))
    assert chi_square_p(Counter(drawn.tolist()), law, n) > 1e-3
    pairs = Counter((drawn[:-1] * v + drawn[1:]).tolist()) if v == 5 else {}
    joint = {a * v + b: law[a] * law[b] for a in range(v) for b in range(v)} if v == 5 else {}
    assert v != 5 or chi_square_p(pairs, joint, n - 1) > 1e-3


def test_seeds_and_shapes():
    """Equal seeds give equal draws, other seeds other draws; [V] gives a scalar and [n, V] a vector."""
    logits = torch.zeros(50, 64)
    first = sample(logits, 1.0, generator(3))
    assert torch.equal(first, sample(logits, 1.0, generator(3)))
    assert not torch.equal(first, sample(logits, 1.0, generator(4)))
    assert first.shape == (50,) and sample(logits[0], 1.0, generator()).shape == ()
    assert first.dtype == torch.long
