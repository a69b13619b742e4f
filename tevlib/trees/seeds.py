"""Seeds of many independent random streams from one."""

GOLDEN = 0x9E3779B1  # odd, so that seeds stay distinct modulo 2**32


def stream_seed(seed: int, place: int) -> int:
    """The 32-bit seed of stream `place` of `seed`. Torch's CPU generator ignores all higher bits of a seed."""
    return (seed * GOLDEN + place) % 2**32
