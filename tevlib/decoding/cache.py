"""A preallocated key/value store of our own.

Transformers' `DynamicCache.crop` changed its meaning between versions and concatenates whole caches per layer; a
tree step needs neither. Here the nodes of a tree are written behind the committed tokens, and `commit` moves the
accepted ones into place.
"""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one sequence, `[layers, 2, 1, heads, capacity, head_dim]`, with room for pending tree nodes.

    `length` counts the committed tokens. A forward pass writes its `n` new tokens at `length .. length + n`, where
    they stay pending until `commit` keeps some of them; what is not kept is overwritten by the next pass.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, capacity: int, dtype: torch.dtype, device: torch.device | str
    ):
        self.store = torch.zeros(layers, 2, 1, heads, capacity, head_dim, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        """All keys and values that the layer may attend to, `[1, heads, length + n, head_dim]`, views of the store.

        This is the one method that transformers' attention modules call. `keys` and `values` are `[1, heads, n,
        head_dim]`. Raises `ValueError` when the store is too small.
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the key/value store holds {self.capacity} tokens, {end} are needed: make it larger when it is created"
            )
        layer = self.store[layer_idx, :, :, :, :end]
        layer[0, :, :, self.length :] = keys
        layer[1, :, :, self.length :] = values
        return layer[0], layer[1]

    def commit(self, kept: list[int]) -> None:
        """Keep the pending tokens `kept` (strictly increasing, counted from 0), in place; forget the others.

        Only tokens that change place are copied: the root of a tree, and a path that happens to be contiguous, stay.
        """
        if any(b <= a for a, b in zip([-1, *kept], kept, strict=False)):
            raise ValueError(f"kept tokens must be strictly increasing from 0, got {kept}")
        start = next((i for i, slot in enumerate(kept) if slot != i), len(kept))
        if start < len(kept):
            source = torch.tensor(kept[start:], device=self.store.device) + self.length
            target = slice(self.length + start, self.length + len(kept))
            self.store[..., target, :] = self.store.index_select(4, source)
        self.length += len(kept)

    def keep_first(self, length: int) -> None:
        """Forget everything after the first `length` committed tokens. Raises `ValueError` if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} committed tokens")
        self.length = length
