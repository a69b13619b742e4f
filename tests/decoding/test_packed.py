"""Many trees in one pass against one forward per path, with and without kept keys."""

import pytest
import torch

from tests.tiny import PLAIN
from tevlib.decoding.packed import KeyStore, packed_pass, read_sequences
from tevlib.trees.draft_tree import DraftTree

LENGTHS = [30, 17, 24]


@pytest.fixture(params=[*PLAIN, "gemma3", "gemma4"])
def family(request):
    """Windows of 8 and keys of several shapes too."""
    return request.param


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
    last, features, keys = read_sequences(target, ids, LENGTHS, (0, 2))
    flat = [(b, anchor, tree) for b, pairs in enumerate(trees) for anchor, tree in pairs]
    for known in (None, keys):
        states = packed_pass(target, ids, LENGTHS, trees, known)
        assert len(states) == len(flat)
        for mine, (b, anchor, tree) in zip(states, flat, strict=True):
            torch.testing.assert_close(mine, path_wise(target, ids, b, anchor, tree), atol=1e-5, rtol=1e-5)
    for b, length in enumerate(LENGTHS):
        after, alone = target.prefill(target.new_cache(length), ids[b, :length], (0, 2))
        torch.testing.assert_close(features[b, :length], alone, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(target.logits(last[b]), after, atol=1e-5, rtol=1e-5)


def test_a_store_passes_each_sequence_once(target, work):
    """Known sequences are not passed again, also beside others that are not known; the keys are the same."""
    ids, _ = work
    _, _, whole = read_sequences(target, ids, LENGTHS)
    store, seen = KeyStore(2**30), []
    for names in ([0, 1, 2], [0, 1, 2], [7, 1, 2]):
        real = target.decoder.forward
        target.decoder.forward = lambda *a, real=real, **k: (seen.append(k["input_ids"].shape), real(*a, **k))[1]
        keys = store.keys(target, ids, LENGTHS, names)
        del target.decoder.forward
        for b, length in enumerate(LENGTHS):
            for mine, theirs in zip(keys, whole, strict=True):
                torch.testing.assert_close(mine[:, :, b, :, :length], theirs[:, :, b, :, :length], atol=1e-5, rtol=1e-5)
    assert seen == [(3, 30), (1, 30)]


def test_a_store_keeps_to_its_limit(target, work):
    """The least recently used sequence goes first; one that does not fit is not kept."""
    ids, _ = work
    size = sum(part.nbytes for part in target.layout.empty(1, 10, target.dtype))
    store = KeyStore(2 * size)
    for name in (0, 1, 0, 2):
        store.keys(target, ids[:1, :10], [10], [name])
    assert list(store.kept) == [0, 2] and store.size == 2 * size
    store.keys(target, ids[:1], [30], [3])
    assert list(store.kept) == [0, 2]


def test_a_tree_at_another_token_is_refused(target, work):
    """A root that is not the sequence's token at the anchor is a mistake of the caller, named."""
    ids, trees = work
    anchor, tree = trees[0][0]
    with pytest.raises(ValueError, match=r"sequence 0: the tree's root \d+ is not the token at 6"):
        packed_pass(target, ids, LENGTHS, [[(anchor + 1, tree)], [], []])
