"""Filters of fixed shape keep the tokens that the host's filters keep, and never look at a value."""

import math

import pytest
import torch
from host_reads import HostReads

from tevlib.trees.fixed_filter import fixed_filter
from tevlib.trees.sampling import filter_logits


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.3, 1e-6])
@pytest.mark.parametrize("top_k", [0, 1, 7, 5000])
def test_same_tokens_as_on_the_host(temperature, top_p, top_k):
    """Both filters, together and alone, on flat and on peaked rows, with ties at the edge and excluded tokens."""
    logits = (
        torch.randn(6, 700, generator=torch.Generator().manual_seed(3)) * torch.tensor([0.1, 1, 2, 4, 9, 2])[:, None]
    )
    logits[5] = logits[5].round()
    logits[4, :50] = -math.inf
    with HostReads(refuse=True):
        got = fixed_filter(logits, temperature, top_p, top_k)
    assert torch.equal(got, filter_logits(logits, temperature, top_p, top_k))


def test_a_nan_row_stays_nan():
    """A row that cannot be judged is handed on as it is: whoever decides says that it was unusable."""
    logits = torch.zeros(2, 9)
    logits[1, 3] = math.nan
    got = fixed_filter(logits, 1.0, 0.5, 4)
    assert got[1].isnan().any() and got[0].isfinite().all()
