"""Many trees of many sequences in one target pass: the sequences, and behind each all nodes of its trees.

A node sees its sequence up to its tree's root, and its ancestors; trees do not see each other. The root is a token
of the sequence (the anchor), so only the other nodes are added. Where a sequence's keys and values are kept from an
earlier pass (`KeyStore`), the nodes alone go through the target.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from tevlib.decoding.target import Target
from tevlib.trees.draft_tree import DraftTree


@dataclass(frozen=True)
class Scored:
    """Final hidden states of one packed pass: `nodes[i] [N_i, H]` for tree i, and the sequences' `features`.

    `features [B, S, len(taps) * H]` are None where no pass over the sequences was made.
    """

    nodes: list[Tensor]
    features: Tensor | None


class SequenceKeys:
    """A cache for one pass over whole sequences; remembers their keys and values, `[layers, 2, B, heads, S, dim]`."""

    def __init__(self, length: int, keep: bool):
        self.length, self.keep = length, keep
        self.kept: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        if self.keep:
            self.kept.append(torch.stack([keys[:, :, : self.length], values[:, :, : self.length]]))
        return keys, values


class PrefixKeys:
    """A cache that holds known keys and values `[layers, 2, B, heads, S, dim]` in front of every new one."""

    def __init__(self, store: Tensor):
        self.store = store

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        known = self.store[layer_idx]
        return torch.cat([known[0], keys], dim=2), torch.cat([known[1], values], dim=2)


class KeyStore:
    """Keys and values of sequences by name, the most recently used of them up to `limit` bytes."""

    def __init__(self, limit: int):
        self.limit, self.size = limit, 0
        self.kept: OrderedDict[int, Tensor] = OrderedDict()

    def get(self, name: int) -> Tensor | None:
        """`[layers, 2, heads, S, dim]` of sequence `name`, None where it is not kept."""
        if name in self.kept:
            self.kept.move_to_end(name)
        return self.kept.get(name)

    def put(self, name: int, keys: Tensor) -> None:
        if keys.nbytes > self.limit or name in self.kept:
            return
        self.kept[name] = keys
        self.size += keys.nbytes
        while self.size > self.limit:
            self.size -= self.kept.popitem(last=False)[1].nbytes


def packed_pass(
    target: Target,
    ids: Tensor,
    lengths: list[int],
    trees: list[list[tuple[int, DraftTree]]],
    taps: tuple[int, ...] = (),
    names: list[int] | None = None,
    store: KeyStore | None = None,
) -> Scored:
    """`Scored` states of the nodes of all `trees`, in the order given, sequence by sequence.

    `ids [B, S]` are sequences of `lengths` tokens, padded behind; `trees[b]` holds pairs (anchor, tree) for
    sequence b, the anchor being the position of the tree's root. With a `store`, sequences whose `names` it knows are
    not passed again (their features are not given then: the caller has them), and the others' keys are kept in it.
    """
    if store is not None and names is not None:
        known = [b for b, name in enumerate(names) if store.get(name) is not None]
        fresh = [b for b in range(len(ids)) if b not in known]
        nodes: dict[int, list[Tensor]] = {}
        for group, some in (("known", known), ("fresh", fresh)):
            if not some:
                continue
            part = [trees[b] for b in some]
            if group == "known":
                keys = _padded([store.get(names[b]) for b in some], target)
                states = _score_nodes(target, ids[some], part, keys)
            else:
                sizes = [lengths[b] for b in some]
                length = max(sizes)
                cache = SequenceKeys(length, keep=True)
                states = _score_all(target, ids[some, :length], sizes, part, taps, cache).nodes
                kept = torch.stack(cache.kept)
                for i, b in enumerate(some):
                    store.put(names[b], kept[:, :, i, :, : lengths[b]].clone())
            counts = iter(states)
            nodes |= {b: [next(counts) for _ in trees[b]] for b in some}
        return Scored([state for b in range(len(ids)) for state in nodes[b]], None)
    return _score_all(target, ids, lengths, trees, taps, SequenceKeys(ids.shape[1], keep=False))


def _score_all(target: Target, ids: Tensor, lengths: list[int], trees, taps, cache: SequenceKeys) -> Scored:
    """One pass over [sequence; nodes]: the root's row is the sequence's at the anchor."""
    length, device = ids.shape[1], ids.device
    tokens, positions, tails = _nodes(ids, trees, with_root=False)
    total = tokens.shape[1]
    visible = torch.zeros(len(ids), length + total, length + total, dtype=torch.bool, device=device)
    visible[:, :length, :length] = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    inside = torch.arange(length, device=device) < torch.tensor(lengths, device=device)[:, None]
    visible[:, :, :length] &= inside[:, None]
    _open_trees(visible, trees, length, with_root=False)
    visible |= torch.eye(length + total, dtype=torch.bool, device=device)  # padding sees itself
    sequence = torch.arange(length, device=device).expand(len(ids), -1)
    hidden, features = target.forward(
        torch.cat([ids, tokens], 1), torch.cat([sequence, positions], 1), visible, cache, taps
    )
    nodes = []
    for b, (pairs, starts) in enumerate(zip(trees, tails, strict=True)):
        for (anchor, tree), start in zip(pairs, starts, strict=True):
            first = length + start
            nodes.append(torch.cat([hidden[b, anchor : anchor + 1], hidden[b, first : first + len(tree) - 1]]))
    return Scored(nodes, features[:, :length])


def _score_nodes(target: Target, ids: Tensor, trees, keys: Tensor) -> list[Tensor]:
    """One pass over the nodes alone, roots included, behind known keys and values."""
    length, device = keys.shape[4], ids.device
    tokens, positions, tails = _nodes(ids, trees, with_root=True)
    total = tokens.shape[1]
    visible = torch.zeros(len(ids), total, length + total, dtype=torch.bool, device=device)
    _open_trees(visible, trees, length, with_root=True)
    visible[:, :, length:] |= torch.eye(total, dtype=torch.bool, device=device)
    hidden, _ = target.forward(tokens, positions, visible, PrefixKeys(keys), ())
    return [
        hidden[b, start : start + len(tree)]
        for b, (pairs, starts) in enumerate(zip(trees, tails, strict=True))
        for (_, tree), start in zip(pairs, starts, strict=True)
    ]


def _nodes(ids: Tensor, trees, with_root: bool) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Tokens and positions `[B, T]` of the nodes, padded, and where each tree starts among them."""
    first = 0 if with_root else 1
    total = max((sum(len(tree) - first for _, tree in pairs) for pairs in trees), default=0)
    tokens = ids.new_zeros(len(ids), total)
    positions = ids.new_zeros(len(ids), total)
    tails = []
    for b, pairs in enumerate(trees):
        starts, at = [], 0
        for anchor, tree in pairs:
            if not 0 <= anchor < ids.shape[1] or int(ids[b, anchor]) != tree.token(0):
                raise ValueError(f"sequence {b}: the tree's root {tree.token(0)} is not the token at {anchor}")
            end = at + len(tree) - first
            tokens[b, at:end] = tree.tokens[first:]
            positions[b, at:end] = anchor + tree.depths[first:]
            starts.append(at)
            at = end
        tails.append(starts)
    return tokens, positions, tails


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


def _padded(keys: list[Tensor], target: Target) -> Tensor:
    """Keys and values of several sequences `[layers, 2, B, heads, longest, dim]`."""
    longest = max(one.shape[3] for one in keys)
    store = keys[0].new_zeros(target.layers, 2, len(keys), target.kv_heads, longest, target.head_dim)
    for b, one in enumerate(keys):
        store[:, :, b, :, : one.shape[3]] = one
    return store
