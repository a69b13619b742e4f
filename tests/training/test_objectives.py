"""The token loss against the obvious computation, its anchors, and what a block may see."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.tiny import make_drafter, make_target
from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.training.batch import Batch
from tevlib.training.config import TrainConfig
from tevlib.training.head_loss import PARTS, head_loss
from tevlib.training.objectives import decay_weights, sample_anchors, token_loss, token_targets
from tevlib.training.step import draw_uniforms, loss, plan


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def keys_for(supervised, seed: int = 0):
    return torch.rand(supervised.shape, generator=generator(seed))


def batch_of(ids, features, supervised) -> Batch:
    return Batch(ids, features, supervised, [ids.shape[1]] * len(ids), list(range(len(ids))))


def token_step(target, drafter, batch, config):
    """Numerator (with its gradient) and denominator of the token loss of one step on one batch."""
    keys = draw_uniforms(batch.lengths, batch.names)
    planned = plan(target, drafter, batch, [], config, keys)
    total, parts = loss(target, drafter, batch, planned, config, planned.denominators)
    weight = planned.denominators[PARTS.index("token")]
    assert float(parts[PARTS.index("token")]) == pytest.approx(float(total.detach()), rel=1e-6)
    return total * weight, weight


def test_decay_weights():
    """exp(-(k - 1) / gamma), and none where gamma is None."""
    assert decay_weights(3, 4.0).tolist() == pytest.approx([1.0, math.exp(-0.25), math.exp(-0.5)])
    assert decay_weights(3, None).tolist() == [1.0, 1.0, 1.0]


def test_anchors_are_supervised_pairs_without_repetition():
    """Every anchor t has t and t + 1 supervised; all valid ones are used when there are few; padding is marked."""
    supervised = torch.zeros(3, 20, dtype=torch.bool)
    supervised[0, 5:20], supervised[1, 17:20] = True, True
    anchors, kept = sample_anchors(supervised, 8, keys_for(supervised))
    assert anchors.shape == kept.shape == (3, 8)
    assert kept.sum(1).tolist() == [8, 2, 0]
    for row in range(3):
        chosen = anchors[row][kept[row]].tolist()
        assert chosen == sorted(set(chosen))
        assert all(supervised[row, t] and supervised[row, t + 1] for t in chosen)
    assert set(sample_anchors(supervised, 99, keys_for(supervised))[0][1][:2].tolist()) == {17, 18}


def test_labels_are_of_the_same_position():
    """Row k of anchor a is scored on the token at a + k, not one further (SpecForge#473); ends weigh nothing."""
    ids = torch.arange(100, 110)[None]
    supervised = torch.ones(1, 10, dtype=torch.bool)
    supervised[0, 8] = False
    labels, weights = token_targets(
        ids, supervised, torch.tensor([[2, 7]]), torch.ones(1, 2, dtype=torch.bool), 3, None
    )
    assert labels[0, 0].tolist() == [103, 104, 105] and weights[0, 0].tolist() == [1, 1, 1]
    assert labels[0, 1].tolist()[:2] == [108, 109] and weights[0, 1].tolist() == [0, 1, 0]


def test_an_oracle_has_no_loss():
    """Rows that point at their labels cost nothing; shifted by one position they cost a lot (SpecForge#473)."""
    head = torch.eye(40)
    labels, weights = torch.randint(40, (2, 5, 7), generator=generator()), torch.ones(2, 5, 7)
    hidden = 60 * head[labels].flatten(0, 2)
    for shift, low, high in ((0, 0.0, 1e-6), (1, 10.0, math.inf)):
        entries, denominator = token_loss(labels.roll(shift, dims=-1), weights)
        assert low <= float(head_loss(hidden, head, entries)[0] / denominator) < high


def logits_of(target, drafter, ids, features, anchors):
    with torch.no_grad():
        blocks = block_embeddings(target, drafter, ids.gather(1, anchors))
        return drafter(features, blocks, anchors)


@pytest.mark.parametrize("anchor", [4, 6, 9])
def test_a_block_sees_nothing_of_its_future(anchor):
    """Tokens and features at positions >= a leave the block at a bit for bit unchanged (SpecForge#470)."""
    target = make_target()
    drafter = make_drafter(target)
    ids = torch.randint(4, 128, (1, 32), generator=generator())
    features = torch.randn(1, 32, 64, generator=generator(1))
    anchors = torch.tensor([[4, 6, 9]])
    before = logits_of(target, drafter, ids, features, anchors)
    index = anchors[0].tolist().index(anchor)
    other_ids, other_features = ids.clone(), features.clone()
    other_ids[0, anchor + 1 :] = 5
    other_features[0, anchor:] = 9.0
    after = logits_of(target, drafter, other_ids, other_features, anchors)
    assert torch.equal(before[0, index], after[0, index])
    earlier = features.clone()
    earlier[0, anchor - 1] = 9.0  # and the last visible feature does matter
    assert not torch.equal(before[0, index], logits_of(target, drafter, ids, earlier, anchors)[0, index])


def test_overlapping_blocks_do_not_see_each_other():
    """A block's states are those it has alone."""
    target = make_target()
    drafter = make_drafter(target)
    ids = torch.randint(4, 128, (1, 32), generator=generator())
    features = torch.randn(1, 32, 64, generator=generator(1))
    together = logits_of(target, drafter, ids, features, torch.tensor([[4, 6, 9]]))
    for i, anchor in enumerate((4, 6, 9)):
        alone = logits_of(target, drafter, ids, features, torch.tensor([[anchor]]))
        torch.testing.assert_close(together[0, i], alone[0, 0], atol=1e-6, rtol=1e-5)


def test_training_pass_equals_the_draft_pass():
    """The packed training pass and incremental inference are one function (no train-inference skew, SpecForge#533)."""
    target = make_target("qwen3")
    drafter = make_drafter(target)
    ids = torch.randint(4, 128, (1, 32), generator=generator())
    features = torch.randn(1, 32, 64, generator=generator(1))
    packed = logits_of(target, drafter, ids, features, torch.tensor([[5, 12]]))
    cache = drafter.new_cache(64)
    for i, (start, anchor) in enumerate(((0, 5), (5, 12))):
        drafter.append_context(cache, features[0, start:anchor])
        with torch.no_grad():
            drafted = drafter.draft(cache, block_embeddings(target, drafter, ids[0, anchor]))
        torch.testing.assert_close(drafted, packed[0, i, 1:], atol=1e-5, rtol=1e-5)


class OracleDrafter(DFlashDraftModel):
    """Row k of a block at anchor a points at the token at a + k + `late`; row 0, the anchor's own, at nothing."""

    def know(self, target, ids, late=0):
        self.target, self.ids, self.late = target, ids, late
        return self

    def forward(self, features, blocks, anchors):
        rows = anchors[..., None] + torch.arange(1, self.block_size) + self.late
        tokens = self.ids.gather(1, rows.clamp(max=self.ids.shape[1] - 1).flatten(1)).view_as(rows)
        aim = 200 * F.normalize(self.target.head.weight.float(), dim=-1)[tokens]
        return torch.cat([torch.zeros_like(aim[:, :, :1]), aim], dim=2)


@pytest.mark.parametrize(("late", "low", "high"), [(0, 0.0, 0.01), (-1, 5.0, math.inf), (1, 5.0, math.inf)])
def test_a_step_scores_row_k_on_the_token_at_anchor_plus_k(late, low, high):
    """The row that decoding reads for a position is the row that learns it (SpecForge#473): an oracle has no loss,
    one that is a position early or late has a large one."""
    target = make_target()
    ids = torch.randint(4, 128, (2, 24), generator=generator())
    drafter = OracleDrafter(make_drafter(target, block_size=5).config).know(target, ids, late)
    batch = batch_of(ids, torch.randn(2, 24, 64), torch.ones(2, 24, dtype=torch.bool))
    total, weight = token_step(target, drafter, batch, TrainConfig(autocast=False))
    assert low <= float(total / weight) < high


def test_a_step_learns_through_the_targets_soft_cap():
    """The loss of a step is that of the law which decoding drafts by: capped where the target's logits are."""
    target = make_target("gemma3")
    drafter = make_drafter(target, block_size=4)
    ids = torch.randint(4, 128, (1, 24), generator=generator())
    batch = batch_of(ids, 3 * torch.randn(1, 24, 64, generator=generator(1)), torch.ones(1, 24, dtype=torch.bool))
    drafts = []
    original = drafter.forward
    drafter.forward = lambda *how: drafts.append((original(*how), how[2])) or drafts[-1][0]
    total, weight = token_step(target, drafter, batch, TrainConfig(autocast=False))
    states, anchors = drafts[0]
    everyone = torch.ones_like(anchors, dtype=torch.bool)
    labels, weights = token_targets(ids, batch.supervised, anchors, everyone, 3, TrainConfig().gamma)
    capped, bare = (
        (weights * F.cross_entropy(head(states[:, :, 1:]).movedim(-1, 1), labels, reduction="none")).sum()
        for head in (target.logits, target.head)
    )
    assert float(total.detach()) == pytest.approx(float(capped.detach()), rel=1e-4)
    assert float((capped - bare).detach().abs() / weight) > 0.05


def test_a_step_weighs_depths_by_the_gamma_of_its_config():
    """A config's decay reaches the loss: the denominator is the sum of the weights of the rows that count."""
    target = make_target()
    drafter = make_drafter(target, block_size=4)
    supervised = torch.zeros(1, 40, dtype=torch.bool)
    supervised[0, 10:13] = True  # anchors 10 and 11: two rows and one row of the three inside
    batch = batch_of(torch.randint(4, 128, (1, 40), generator=generator()), torch.randn(1, 40, 64), supervised)
    for gamma in (1.0, 4.0):
        weight = token_step(target, drafter, batch, TrainConfig(gamma=gamma, autocast=False))[1]
        assert float(weight) == pytest.approx(2 + math.exp(-1 / gamma))


@pytest.mark.parametrize("answers", [[0, 0], [0, 12], [1, 12], [2, 3]])
def test_batches_with_nothing_to_learn_are_finite(answers):
    """No supervised token, too few, or a short answer at the very end: finite loss and gradients (pytorch#70348)."""
    target = make_target()
    drafter = make_drafter(target, block_size=16)
    supervised = torch.zeros(2, 20, dtype=torch.bool)
    for row, n in enumerate(answers):
        supervised[row, 20 - n :] = True
    batch = batch_of(torch.randint(4, 128, (2, 20), generator=generator()), torch.randn(2, 20, 64), supervised)
    total, weight = token_step(target, drafter, batch, TrainConfig(autocast=False))
    total.backward()
    assert bool(total.isfinite())
    assert (float(weight) > 0) == (max(answers) >= 2)
    assert all(bool(p.grad.isfinite().all()) for p in drafter.parameters() if p.grad is not None)
