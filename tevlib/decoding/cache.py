"""A preallocated key/value store of our own.

Transformers' `DynamicCache.crop` changed its meaning between versions and concatenates whole caches per layer; a
tree step needs neither. Here the nodes of a tree are written behind the committed tokens, and `commit` moves the
accepted ones into place. Sliding layers keep every key too: their window is a matter of what they are handed, so a
tree can be rolled back however long the text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LayerKeys(NamedTuple):
    """What one layer keeps: key heads and their size, on which device, and how many positions back it looks."""

    heads: int
    head_dim: int
    device: torch.device
    window: int | None = None  # None: everything; else a token at position p sees positions > p - window


class Layout:
    """Which layers keep their keys in one tensor: those of the same shape on the same device.

    `layers` holds what each layer keeps, `None` for one that reads another layer's keys; `groups` the layers of each
    tensor, `place` the tensor and the row in it of each layer.
    """

    def __init__(self, layers: Sequence[LayerKeys | None]):
        self.layers = list(layers)
        members: dict[tuple, list[int]] = {}
        for index, kept in enumerate(layers):
            if kept is not None:
                members.setdefault(kept[:3], []).append(index)
        self.groups = list(members.values())
        self.shapes = [LayerKeys(*shape) for shape in members]
        self.place = {layer: (g, row) for g, group in enumerate(self.groups) for row, layer in enumerate(group)}

    @property
    def windows(self) -> set[int]:
        """The windows of its sliding layers."""
        return {kept.window for kept in self.layers if kept is not None and kept.window is not None}

    @property
    def uniform(self) -> bool:
        """Whether all keys are in one tensor and every layer sees everything."""
        return len(self.groups) == 1 and not self.windows

    def empty(self, batch: int, capacity: int, dtype: torch.dtype) -> list[Tensor]:
        """A zero tensor `[layers, 2, batch, heads, capacity, head_dim]` for each group."""
        return [
            torch.zeros(len(group), 2, batch, kept.heads, capacity, kept.head_dim, dtype=dtype, device=kept.device)
            for group, kept in zip(self.groups, self.shapes, strict=True)
        ]


class KVCache:
    """Keys and values of one sequence, with room for pending tree nodes.

    `stores` holds a tensor `[layers, 2, 1, heads, capacity, head_dim]` per group of the layout; `store` is the only
    one. `length` counts the committed tokens. A forward pass writes its `n` new tokens at `length .. length + n`, where
    they stay pending until `commit` keeps some of them; what is not kept is overwritten by the next pass.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, capacity: int, dtype: torch.dtype, device: torch.device | str
    ):
        self._allocate(Layout([LayerKeys(heads, head_dim, torch.device(device))] * layers), capacity, dtype)

    @classmethod
    def of(cls, layout: Layout, capacity: int, dtype: torch.dtype) -> KVCache:
        """A store for layers that differ."""
        cache = cls.__new__(cls)
        cache._allocate(layout, capacity, dtype)
        return cache

    def _allocate(self, layout: Layout, capacity: int, dtype: torch.dtype) -> None:
        self.layout, self.capacity, self.length = layout, capacity, 0
        self.stores = layout.empty(1, capacity, dtype)
        self.views = {layer: self.stores[group][row] for layer, (group, row) in layout.place.items()}
        self.windows = {layer: layout.layers[layer].window for layer in layout.place}

    @property
    def store(self) -> Tensor:
        """The one tensor of layers that are all alike. Raises `ValueError` where they are not."""
        if len(self.stores) != 1:
            raise ValueError(f"the layers' keys are of {len(self.stores)} shapes or devices: there is no single store")
        return self.stores[0]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        """All keys and values that the layer may attend to, `[1, heads, m, head_dim]`, views of the store.

        This is the one method that transformers' attention modules call. `keys` and `values` are `[1, heads, n,
        head_dim]`; `m` is `length + n`, in a layer with a window no more than `window - 1 + n`. Raises `ValueError`
        when the store is too small.
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(
                f"the key/value store holds {self.capacity} tokens, {end} are needed: make it larger when it is created"
            )
        layer = self.views[layer_idx][:, :, :, :end]
        layer[0, :, :, self.length :] = keys
        layer[1, :, :, self.length :] = values
        if first := self._first(self.windows[layer_idx]):
            layer = layer[:, :, :, first:]
        return layer[0], layer[1]

    def key_positions(self, new: Tensor, window: int | None) -> Tensor:
        """Positions `[1, m]` of the keys that `update` returns for a layer with `window` and tokens at `new [1, n]`."""
        old = torch.arange(self._first(window), self.length, device=new.device)
        return torch.cat([old[None], new], dim=1)

    def _first(self, window: int | None) -> int:
        """The first position that a token behind the committed ones can see."""
        return 0 if window is None else max(0, self.length + 1 - window)

    def commit(self, kept: list[int]) -> None:
        """Keep the pending tokens `kept` (strictly increasing, counted from 0), in place; forget the others.

        Only tokens that change place are copied: the root of a tree, and a path that happens to be contiguous, stay.
        """
        if any(b <= a for a, b in zip([-1, *kept], kept, strict=False)):
            raise ValueError(f"kept tokens must be strictly increasing from 0, got {kept}")
        start = next((i for i, slot in enumerate(kept) if slot != i), len(kept))
        if start < len(kept):
            target = slice(self.length + start, self.length + len(kept))
            for store in self.stores:
                source = torch.tensor(kept[start:], device=store.device) + self.length
                store[..., target, :] = store.index_select(4, source)
        self.length += len(kept)

    def keep_first(self, length: int) -> None:
        """Forget everything after the first `length` committed tokens. Raises `ValueError` if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} committed tokens")
        self.length = length
