"""Keys and values at fixed shapes: the length is a number on the device, and attention runs over the whole store.

Nothing here depends on how long a text is, so a captured CUDA graph stays valid for every round. What is not to be
seen is masked; `capacity` is what a pass costs, so a store is made no larger than a request needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tevlib.decoding.attention import grouped_attention
from tevlib.decoding.cache import KVCache
from tevlib.decoding.drafter import DFlashDraftModel, rotate
from tevlib.decoding.target import Target, tapped


class FixedCache:
    """A view of a `KVCache`'s store whose `length` [] long lives on the device.

    A pass first says with `expect(n)` how many tokens it brings; they are then pending at `slots` [n], right behind the
    committed ones. Prefill goes through the `KVCache` itself, before `take_length`. Raises `ValueError` for a store of
    several shapes, devices or windows.
    """

    def __init__(self, kv: KVCache):
        if not kv.layout.uniform:
            raise ValueError(
                "rounds of fixed shape serve layers of full attention, one shape and one device; this target has "
                f"{len(kv.stores)} shapes or devices and windows {sorted(kv.layout.windows)}: use speculate"
            )
        self.kv, self.store = kv, kv.store
        self.length = torch.zeros((), dtype=torch.long, device=kv.store.device)
        self.offsets = torch.arange(kv.capacity, device=kv.store.device)
        self.slots = self.offsets[:0]

    @property
    def capacity(self) -> int:
        return self.kv.capacity

    def take_length(self) -> None:
        """Start from what the `KVCache` has committed."""
        self.length.fill_(self.kv.length)

    def expect(self, n: int) -> None:
        """The next pass brings `n` tokens."""
        self.slots = self.length + self.offsets[:n]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        """All keys and values `[1, heads, capacity, head_dim]` of the layer's store, with the new ones at `slots`."""
        layer = self.store[layer_idx]
        layer[0].index_copy_(2, self.slots, keys)
        layer[1].index_copy_(2, self.slots, values)
        return layer[0], layer[1]

    def commit(self, path: Tensor, length: Tensor) -> None:
        """Keep the first `length` [] of the pending tokens `path` [m] (ascending from 0, padded), in place.

        One gather and one scatter over all layers. The root, `path[0]`, stays where it is; padding is written behind
        the new length, where the next pass overwrites it.
        """
        if len(path) > 1:
            rows = self.store.flatten(0, 3)
            moved = rows.index_select(1, path[1:] + self.length)
            rows.index_copy_(1, self.length + self.offsets[1 : len(path)], moved)
        self.length.add_(length)


class TreeMask:
    """The additive mask `[1, 1, repeats * n, capacity]` of a tree's nodes, rewritten in place: n columns a round."""

    def __init__(self, nodes: int, capacity: int, repeats: int, dtype: torch.dtype, device: torch.device | str):
        self.hidden = torch.finfo(dtype).min
        self.rows = torch.full((repeats, nodes, capacity), self.hidden, dtype=dtype, device=device)
        self.offsets = torch.arange(nodes, device=device)

    @property
    def mask(self) -> Tensor:
        return self.rows.view(1, 1, -1, self.rows.shape[-1])

    def begin(self, committed: int) -> None:
        """All nodes see the first `committed` tokens and nothing else."""
        self.rows.fill_(self.hidden)
        self.rows[..., :committed] = 0

    def show(self, ancestors: Tensor, slots: Tensor) -> None:
        """Among the pending tokens at `slots` [n] a node sees its ancestors `[n, n]` and itself."""
        self._write(ancestors, slots)

    def commit(self, length: Tensor, slots: Tensor) -> None:
        """The first `length` [] of `slots` are committed: all see them. Nobody sees the others."""
        self._write(self.offsets < length, slots)

    def _write(self, visible: Tensor, slots: Tensor) -> None:
        additive = torch.where(visible, 0.0, self.hidden).to(self.rows.dtype)
        self.rows.index_copy_(2, slots, additive.expand_as(self.rows[..., : len(slots)]))


def pass_tree(
    target: Target, cache: FixedCache, tokens: Tensor, depths: Tensor, mask: Tensor, taps: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`Target.pass_tree` at fixed shape: final hidden states `[n, H]` and features `[n, len(taps) * H]`."""
    cache.expect(len(tokens))
    with tapped(target.decoder, taps) as outputs:
        hidden = target.decoder(
            input_ids=tokens[None],
            position_ids=(cache.length + depths)[None],
            attention_mask=mask,
            cache=cache,
            use_cache=True,
        ).last_hidden_state
    return hidden[0], torch.cat([outputs[layer] for layer in taps], dim=-1)[0]


def draft_block(
    drafter: DFlashDraftModel, cache: FixedCache, block: Tensor, depth: Tensor, features: Tensor, count: Tensor
) -> Tensor:
    """`DFlashDraftModel.draft` of the first `depth` [] + 1 of `block [n, H]`: states `[n - 1, H]`, then padding.

    The first `count` [] of `features [m, K * H]` are committed on the way. What is behind them goes to the last places
    of the store, which nobody sees.
    """
    context = drafter.fuse(features[None])
    m, n = len(features), len(block)
    places = cache.offsets[:m]
    places = torch.where(places < count, cache.length + places, cache.capacity - m + places)
    cache.length.add_(count)
    cache.slots = torch.cat([places, cache.length + cache.offsets[:n]])
    rope = drafter.rotary(cache.slots[None])
    own = (rope[0][:, m:], rope[1][:, m:])
    x = block[None].to(drafter.dtype)
    there = (cache.offsets <= cache.length + depth)[None]
    rows = cache.length + cache.offsets[:n]
    masks = {s: there & s.visible(rows, cache.offsets) if s.masks else there for s in drafter.sights}
    masks = {s: torch.where(seen, 0.0, torch.finfo(x.dtype).min).to(x.dtype)[None, None] for s, seen in masks.items()}
    for i, (layer, sight) in enumerate(zip(drafter.layers, drafter.sights, strict=True)):
        normed = layer.input_layernorm(x)
        new = layer.self_attn.keys_values(torch.cat([context, normed], 1), rope)
        x = x + _attend(layer.self_attn, normed, own, *cache.update(*new, i), masks[sight])
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return drafter.finish(x)[0, 1:]


def _attend(attention, x: Tensor, rope: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    batch, n, _ = x.shape
    query = attention.q_norm(attention.q_proj(x).view(batch, n, attention.heads, attention.dim)).transpose(1, 2)
    out, _ = grouped_attention(attention, rotate(query, *rope), keys, values, mask, attention.dim**-0.5)
    return attention.o_proj(out.reshape(batch, n, -1))
