"""Many trees of many sequences in one target pass: the sequences, and behind each all nodes of its trees.

A node sees its sequence up to its tree's root, and its ancestors; trees do not see each other. The root is a token
of the sequence (the anchor), so only the other nodes are added. Where the sequences' keys and values are known from an
earlier pass (`read_sequences`), the nodes alone go through the target.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from tevlib.decoding.cache import Layout
from tevlib.decoding.target import Target
from tevlib.trees.draft_tree import DraftTree

Keys = list[Tensor]  # of whole sequences: `[layers, 2, B, heads, S, dim]` for each group of the target's layout


class SequenceKeys:
    """A cache for one pass over whole sequences; remembers the keys and values of their first `length` tokens."""

    def __init__(self, length: int, keep: bool):
        self.length, self.keep = length, keep
        self.kept: dict[int, Tensor] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        if self.keep:
            self.kept[layer_idx] = torch.stack([keys[:, :, : self.length], values[:, :, : self.length]])
        return keys, values

    def key_positions(self, new: Tensor, window: int | None) -> Tensor:
        return new

    def keys(self, layout: Layout) -> Keys:
        return [torch.stack([self.kept[layer] for layer in group]) for group in layout.groups]


class PrefixKeys:
    """A cache that holds known `keys` in front of every new one."""

    def __init__(self, layout: Layout, keys: Keys):
        self.layers = {layer: keys[group][row] for layer, (group, row) in layout.place.items()}
        self.length = keys[0].shape[4]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        known = self.layers[layer_idx]
        return torch.cat([known[0], keys], dim=2), torch.cat([known[1], values], dim=2)

    def key_positions(self, new: Tensor, window: int | None) -> Tensor:
        old = torch.arange(self.length, device=new.device).expand(len(new), -1)
        return torch.cat([old, new], dim=1)


class KeyStore:
    """Keys and values of sequences by name, the most recently used of them up to `limit` bytes."""

    def __init__(self, limit: int):
        self.limit, self.size = limit, 0
        self.kept: OrderedDict[int, Keys] = OrderedDict()

    def keys(self, target: Target, ids: Tensor, lengths: list[int], names: list[int]) -> Keys:
        """What `read_sequences` gives for the sequences; those whose `names` are known are not passed again."""
        unknown = [b for b, name in enumerate(names) if name not in self.kept]
        stores = target.layout.empty(len(ids), max(lengths), target.dtype)
        for b, name in enumerate(names):
            if name in self.kept:
                self.kept.move_to_end(name)
                for store, known in zip(stores, self.kept[name], strict=True):
                    store[:, :, b, :, : lengths[b]] = known
        if unknown:
            sizes = [lengths[b] for b in unknown]
            _, _, fresh = read_sequences(target, ids[unknown, : max(sizes)], sizes)
            for i, b in enumerate(unknown):
                own = [keys[:, :, i, :, : lengths[b]] for keys in fresh]
                for store, keys in zip(stores, own, strict=True):
                    store[:, :, b, :, : lengths[b]] = keys
                self._put(names[b], own)
        return stores

    def _put(self, name: int, keys: Keys) -> None:
        size = sum(part.numel() * part.element_size() for part in keys)
        if size > self.limit:
            return
        self.kept[name] = [part.clone() for part in keys]
        self.size += size
        while self.size > self.limit:
            self.size -= sum(part.nbytes for part in self.kept.popitem(last=False)[1])


def read_sequences(
    target: Target, ids: Tensor, lengths: list[int], taps: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor, Keys]:
    """What one pass over padded `ids [B, S]` gives: final states of the last tokens, features, keys and values.

    `[B, H]`, `[B, S, len(taps) * H]` and `[layers, 2, B, heads, S, dim]` for each group of the target's layout.
    """
    cache = SequenceKeys(ids.shape[1], keep=True)
    hidden, features, _ = _pass_over_all(target, ids, lengths, [[] for _ in lengths], taps, cache)
    last = torch.tensor(lengths, device=ids.device) - 1
    return hidden[torch.arange(len(ids), device=ids.device), last], features, cache.keys(target.layout)


def packed_pass(
    target: Target,
    ids: Tensor,
    lengths: list[int],
    trees: list[list[tuple[int, DraftTree]]],
    keys: Keys | None = None,
) -> list[Tensor]:
    """Final hidden states `[N, H]` of the nodes of every tree, in the order given, sequence by sequence.

    `ids [B, S]` are sequences of `lengths` tokens, padded behind; `trees[b]` holds pairs (anchor, tree) for
    sequence b, the anchor being the position of the tree's root. With `keys`, what `read_sequences` gave for these
    sequences, only the nodes are passed. Raises `ValueError` for a root that is not the token at its anchor.
    """
    if keys is not None:
        return _pass_over_nodes(target, ids, trees, keys)
    hidden, _, starts = _pass_over_all(target, ids, lengths, trees, (), SequenceKeys(ids.shape[1], keep=False))
    length = ids.shape[1]
    return [
        torch.cat([hidden[b, anchor : anchor + 1], hidden[b, length + start : length + start + len(tree) - 1]])
        for b, pairs in enumerate(trees)
        for (anchor, tree), start in zip(pairs, starts[b], strict=True)
    ]


def _pass_over_all(
    target: Target, ids: Tensor, lengths: list[int], trees, taps, cache
) -> tuple[Tensor, Tensor, list[list[int]]]:
    """One pass over [sequence; nodes]: states of all, features of the sequences, where trees start among the nodes.

    The root's row is the sequence's at the anchor.
    """
    length, device = ids.shape[1], ids.device
    tokens, positions, starts = _nodes(ids, trees, with_root=False)
    total = tokens.shape[1]
    visible = torch.zeros(len(ids), length + total, length + total, dtype=torch.bool)
    visible[:, :length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
    visible[:, :, :length] &= (torch.arange(length) < torch.tensor(lengths)[:, None])[:, None]
    _open_trees(visible, trees, length, with_root=False)
    visible |= torch.eye(length + total, dtype=torch.bool)  # padding sees itself
    visible = visible.to(device)
    sequence = torch.arange(length, device=device).expand(len(ids), -1)
    hidden, features = target.forward(
        torch.cat([ids, tokens], 1), torch.cat([sequence, positions], 1), visible, cache, taps
    )
    return hidden, features[:, :length], starts


def _pass_over_nodes(target: Target, ids: Tensor, trees, keys: Keys) -> list[Tensor]:
    """One pass over the nodes alone, roots included, behind known keys and values."""
    length = keys[0].shape[4]
    tokens, positions, starts = _nodes(ids, trees, with_root=True)
    total = tokens.shape[1]
    visible = torch.zeros(len(ids), total, length + total, dtype=torch.bool)
    _open_trees(visible, trees, length, with_root=True)
    visible[:, :, length:] |= torch.eye(total, dtype=torch.bool)
    hidden, _ = target.forward(tokens, positions, visible.to(ids.device), PrefixKeys(target.layout, keys), ())
    return [
        hidden[b, start : start + len(tree)]
        for b, pairs in enumerate(trees)
        for (_, tree), start in zip(pairs, starts[b], strict=True)
    ]


def _nodes(ids: Tensor, trees, with_root: bool) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Tokens and positions `[B, T]` of the nodes, padded, and where each tree starts among them."""
    first = 0 if with_root else 1
    total = max((sum(len(tree) - first for _, tree in pairs) for pairs in trees), default=0)
    known = ids.tolist()
    tokens = torch.zeros(len(ids), total, dtype=torch.long)  # on the CPU first: one copy, not one per tree
    positions = torch.zeros_like(tokens)
    places = []
    for b, pairs in enumerate(trees):
        starts, at = [], 0
        for anchor, tree in pairs:
            if not 0 <= anchor < ids.shape[1] or known[b][anchor] != tree.token(0):
                raise ValueError(f"sequence {b}: the tree's root {tree.token(0)} is not the token at {anchor}")
            end = at + len(tree) - first
            tokens[b, at:end] = tree.tokens[first:]
            positions[b, at:end] = anchor + tree.depths[first:]
            starts.append(at)
            at = end
        places.append(starts)
    return tokens.to(ids.device), positions.to(ids.device), places


def _open_trees(visible: Tensor, trees, length: int, with_root: bool) -> None:
    """Let every node see its sequence up to the root, and its ancestors."""
    first = 0 if with_root else 1
    offset = visible.shape[2] - visible.shape[1]  # rows are the last of the columns
    for b, pairs in enumerate(trees):
        at = length
        for anchor, tree in pairs:
            end = at + len(tree) - first
            rows = slice(at - offset, end - offset)
            visible[b, rows, : anchor + (0 if with_root else 1)] = True
            visible[b, rows, at:end] = tree.ancestors[first:, first:]
            at = end
