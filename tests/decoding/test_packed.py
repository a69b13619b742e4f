"""Many trees in one pass against one forward per path, with and without kept keys."""

import pytest
import torch

from tevlib.decoding.packed import KeyStore, packed_pass
from tevlib.trees.draft_tree import DraftTree

LENGTHS = [30, 17, 24]


@pytest.fixture
def work():
    """Three padded sequences, one without a tree, and trees of several shapes at several anchors, two overlapping."""
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 128, (3, 30), generator=g)

    def tree(b, anchor, parents):
        tokens = torch.randint(4, 128, (len(parents),), generator=g)
        tokens[0] = ids[b, anchor]
        return anchor, DraftTree(tokens, parents)

    trees = [
        [tree(0, 5, [-1, 0, 0, 1, 1, 3]), tree(0, 6, [-1, 0, 1, 2]), tree(0, 29, [-1, 0, 0])],
        [],
        [tree(2, 0, [-1]), tree(2, 12, [-1, 0, 1, 1, 2, 4, 0])],
    ]
    return ids, trees


def path_wise(target, ids, b, anchor, tree):
    """Final states of the nodes, each from a forward of its own over prefix and path."""
    rows = []
    for node in range(len(tree)):
        text = torch.cat([ids[b, : anchor + 1], torch.tensor(tree.path(node), dtype=torch.long)])
        visible = torch.ones(len(text), len(text), dtype=torch.bool).tril()
        hidden, _ = target.forward(text[None], torch.arange(len(text))[None], visible[None], None, ())
        rows.append(hidden[0, -1])
    return torch.stack(rows)


def test_packed_trees_equal_a_forward_per_path(target, work):
    """Siblings, overlaps, a root alone, padding: every node sees its sequence up to the root, and its path."""
    ids, trees = work
    scored = packed_pass(target, ids, LENGTHS, trees, (0, 2))
    flat = [(b, anchor, tree) for b, pairs in enumerate(trees) for anchor, tree in pairs]
    assert len(scored.nodes) == len(flat)
    for states, (b, anchor, tree) in zip(scored.nodes, flat, strict=True):
        torch.testing.assert_close(states, path_wise(target, ids, b, anchor, tree), atol=1e-5, rtol=1e-5)
    for b, length in enumerate(LENGTHS):
        _, features = target.prefill(target.new_cache(length), ids[b, :length], (0, 2))
        torch.testing.assert_close(scored.features[b, :length], features, atol=1e-5, rtol=1e-5)


def test_kept_keys_give_the_same_states(target, work):
    """First visits fill the store; later ones score the nodes alone, also beside sequences that are not kept."""
    ids, trees = work
    plain = packed_pass(target, ids, LENGTHS, trees).nodes
    store, seen = KeyStore(2**30), []
    for names in ([0, 1, 2], [0, 1, 2], [7, 1, 2]):
        real = target.decoder.forward
        target.decoder.forward = lambda *a, real=real, **k: (seen.append(k["input_ids"].shape), real(*a, **k))[1]
        kept = packed_pass(target, ids, LENGTHS, trees, names=names, store=store).nodes
        del target.decoder.forward
        for mine, theirs in zip(kept, plain, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    nodes = 13 - 2 + 2
    assert seen[0][1] > 30 and seen[1] == (3, nodes) and {shape[0] for shape in seen[2:]} == {1, 2}


def test_a_store_keeps_to_its_limit():
    """The least recently used sequence goes first; one that does not fit is not kept."""
    one = torch.zeros(1, 2, 1, 8, 2)
    store = KeyStore(2 * one.nbytes)
    store.put(0, one), store.put(1, one)
    assert store.get(0) is one
    store.put(2, one)
    assert store.get(1) is None and store.get(0) is one and store.get(2) is one and store.size == 2 * one.nbytes
    store.put(3, torch.zeros(1, 2, 1, 80, 2))
    assert store.get(3) is None


def test_a_tree_at_another_token_is_refused(target, work):
    """A root that is not the sequence's token at the anchor is a mistake of the caller, named."""
    ids, trees = work
    anchor, tree = trees[0][0]
    with pytest.raises(ValueError, match=r"sequence 0: the tree's root \d+ is not the token at 6"):
        packed_pass(target, ids, LENGTHS, [[(anchor + 1, tree)], [], []])
