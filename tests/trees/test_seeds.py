"""Seeds of streams: distinct where a generator looks, for neighbouring seeds and places too."""

import torch

from tevlib.trees.seeds import stream_seed


def test_neighbouring_seeds_share_no_stream():
    """Seed 1's first stream is not seed 0's second: no two of 40 seeds' first 500 streams are one."""
    assert len({stream_seed(seed, place) for seed in range(40) for place in range(500)}) == 40 * 500


def test_all_of_a_seed_lies_in_the_bits_that_a_generator_reads():
    """Torch's CPU generator ignores the bits from 2**32 on: other streams must draw other numbers."""
    draws = set()
    for seed in (0, 1, 2, 2**20, 2**31):
        for place in (0, 1, 256):
            assert 0 <= stream_seed(seed, place) < 2**32
            draws.add(float(torch.rand((), generator=torch.Generator().manual_seed(stream_seed(seed, place)))))
    assert len(draws) == 15
