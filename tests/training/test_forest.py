"""Trees in training: they are those of decoding, and each objective on them is what its formula says."""

import dataclasses

import pytest
import torch

from tests.tiny import AimedDrafter, make_drafter, make_target
from tevlib.decoding.decode import speculate
from tevlib.training.batch import collate
from tevlib.training.config import TrainConfig
from tevlib.training.forest import grow
from tevlib.training.head_loss import PARTS, REVERSE_KL, TWO_OUTCOME_KL, head_loss
from tevlib.training.objectives import Guide, Played, exit_loss, gain_loss, opd_loss, prefix_loss
from tevlib.training.replay import replay
from tevlib.training.rollouts import rollouts
from tevlib.training.step import draw_uniforms, loss, plan
from tevlib.training.train import train
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law

TAPS, DEPTHS = (0, 2), 5
PROMPTS = [[7, 30, 41 + i, 9, *range(60, 60 + i % 4)] for i in range(6)]


def texts_of(target, temperature=0.0):
    how = dict(temperature=temperature, max_new_tokens=24, seed=0, rows=3, stop_ids=frozenset({-1}))
    return sorted(rollouts(target, PROMPTS, TAPS, **how), key=lambda r: r.index)


def config_of(**changes) -> TrainConfig:
    settings = dict(
        steps=6, sequences=2, anchors=6, trees=3, tree_budget=9, learning_rate=3e-3, autocast=False, save_every=2,
        validate_every=6, validation_contexts=4, validation_budgets=(4, 8), validation_temperatures=(1.0,),
    )  # fmt: skip
    return TrainConfig(**settings | changes)


def random_guides(n: int = 4, vocab: int = 12, seed: int = 0):
    """Random trees of a vocabulary with random target rows, as guides of consecutive blocks, and their logits."""
    g = torch.Generator().manual_seed(seed)
    guides, logits = [], []
    for i in range(n):
        parents, tokens, depths = [-1], [0], [0]
        while len(parents) < 9:
            parent = int(torch.randint(len(parents), (), generator=g))
            token = int(torch.randint(vocab, (), generator=g))
            if depths[parent] < DEPTHS and (parent, token) not in set(zip(parents, tokens, strict=True)):
                parents.append(parent), tokens.append(token), depths.append(depths[parent] + 1)
        rows = 2 * torch.randn(len(parents), vocab, generator=g, dtype=torch.float64)
        logits.append(rows)
        guides.append(Guide(exit_law(DraftTree(tokens, parents), rows), i * DEPTHS, DEPTHS))
    return guides, logits


def hidden_and_head(rows: int, vocab: int = 12):
    g = torch.Generator().manual_seed(9)
    hidden = torch.randn(rows, 6, generator=g, dtype=torch.float64, requires_grad=True)
    return hidden, torch.randn(vocab, 6, generator=g, dtype=torch.float64)


def node_sum(guides, hidden, head, weight) -> float:
    """sum over trees and non-root nodes of weight(law, v) * -log q, node by node."""
    log_q = torch.log_softmax(hidden @ head.T, -1).detach()
    return sum(
        float(-weight(g.law, v) * log_q[g.first + len(g.law.tree.path(v)) - 1, g.law.tree.token(v)])
        for g in guides
        for v in range(1, len(g.law.tree))
    )


def test_exit_loss_is_the_sum_over_nodes():
    """Eq. 14: gathers equal the naive sum; the weights of a tree are 1 - w(root); the denominator counts nodes."""
    guides, _ = random_guides()
    hidden, head = hidden_and_head(4 * DEPTHS)
    entries, denominator = exit_loss(guides)
    total, _ = head_loss(hidden, head, entries)
    assert float(total.detach()) == pytest.approx(node_sum(guides, hidden, head, lambda law, v: law.w[v]), rel=1e-9)
    assert float(denominator) == sum(len(g.law.tree) - 1 for g in guides)
    for g in guides:
        mine = (entries.rows >= g.first) & (entries.rows < g.first + DEPTHS)
        assert float(entries.weights[mine].sum()) == pytest.approx(1 - float(g.law.w[0]), abs=1e-9)


def test_horizon_leaves_can_be_left_out():
    """Without them nodes at the last depth weigh nothing and nothing else changes; `prefix` keeps to the same total."""
    guides, _ = random_guides(n=12)
    assert any(g.law.tree.height == DEPTHS for g in guides)
    with_, without = exit_loss(guides)[0], exit_loss(guides, horizon_leaves=False)[0]
    last = with_.rows % DEPTHS == DEPTHS - 1
    assert float(without.weights.sum()) == pytest.approx(float(with_.weights[~last].sum()))
    assert not bool((without.rows % DEPTHS == DEPTHS - 1).any())
    for leaves in (True, False):
        totals = [loss(guides, leaves)[0].weights.sum() for loss in (exit_loss, prefix_loss)]
        assert float(totals[0]) == pytest.approx(float(totals[1]))


def test_prefix_control_is_reach_at_the_exit_loss_s_weight():
    """Per tree: weights proportional to P(v), their sum that of w(v), the same denominator."""
    guides, _ = random_guides()
    entries, denominator = prefix_loss(guides)
    assert float(denominator) == float(exit_loss(guides)[1])
    hidden, head = hidden_and_head(4 * DEPTHS)
    scale = {id(g.law): float(g.law.w[1:].sum() / g.law.P[1:].sum()) for g in guides}
    expected = node_sum(guides, hidden, head, lambda law, v: law.P[v] * scale[id(law)])
    assert float(head_loss(hidden, head, entries)[0].detach()) == pytest.approx(expected, rel=1e-9)


def test_nodes_without_exit_mass_get_no_gradient():
    """A node whose children hold all its mass (w = 0) is not taught."""
    rows = torch.full((3, 5), -torch.inf, dtype=torch.float64)
    rows[0] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    rows[1, 2] = 0.0  # node 1 always goes on to its child
    rows[2] = 0.0
    guide = Guide(exit_law(DraftTree([0, 1, 2], [-1, 0, 1]), rows), 0, DEPTHS)
    entries, _ = exit_loss([guide])
    assert float(guide.law.w[1]) == 0 and entries.tokens.tolist() == [2] and entries.rows.tolist() == [1]
    hidden, head = hidden_and_head(DEPTHS, vocab=5)
    gradient = torch.autograd.grad(head_loss(hidden, head, entries)[0], hidden)[0]
    assert not gradient[0].any() and bool(gradient[1].any())


def test_one_step_gain_is_the_difference_of_coverages_on_a_real_tree():
    """Eq. 12 on trees of a drafter under a target: adding a child raises C_p by P(v) p_v(a)."""
    target = make_target("qwen3")
    drafter = make_drafter(target)
    batch = collate(texts_of(target)[:2])
    anchors, kept = torch.tensor([[6, 9], [7, 12]]), torch.ones(2, 2, dtype=torch.bool)
    for grown in grow(target, drafter, batch, anchors, kept, budget=7, temperature=1.0, every_row=True):
        tree, law = grown.tree, grown.law
        for node in (0, len(tree) - 1):
            token = next(t for t in range(20, 128) if tree.child(node, t) is None)
            larger = DraftTree([*tree.tokens.tolist(), token], [*tree.parents.tolist(), node])
            rows = torch.cat([grown.logits, torch.zeros(1, 128)])
            after = exit_law(larger, rows).coverage
            assert float(after - law.coverage) == pytest.approx(float(law.one_step_gain(node, token)), abs=1e-6)


@pytest.mark.parametrize("share", ["all", "missing", "present", "root"])
def test_gain_is_the_sum_over_nodes_and_tokens(share):
    """Our objective, token by token: row d learns the sum of P(v) p_v(a) over depth d - 1, or a share of it."""
    guides, logits = random_guides(seed=3)
    hidden, head = hidden_and_head(4 * DEPTHS)
    log_q = torch.log_softmax(hidden @ head.T, -1).detach()
    expected = mass = 0.0
    for guide, rows in zip(guides, logits, strict=True):
        tree, P, p = guide.law.tree, guide.law.P, torch.softmax(rows, -1)
        for v in range(len(tree)):
            depth = len(tree.path(v))
            if depth == DEPTHS or (share == "root" and v > 0) or float(P[v]) < 1e-2:
                continue
            for a in range(12):
                present = tree.child(v, a) is not None
                if share in ("all", "root") or present == (share == "present"):
                    expected -= float(P[v] * p[v, a] * log_q[guide.first + depth, a])
                    mass += float(P[v] * p[v, a])
    mixture, denominator = gain_loss(guides, logits, 1.0, share, floor=1e-2)
    empty, _ = exit_loss([])
    total, parts = head_loss(hidden, head, empty, mixture)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-9) and float(denominator) == pytest.approx(mass)
    assert float(parts[PARTS.index("gain")]) == pytest.approx(expected, rel=1e-9)


def test_opd_is_the_published_sum():
    """Accepted tokens and the correction: two-outcome KL; the rest of the chain: the sampled reverse KL, decayed."""
    chain = DraftTree([0, 3, 4, 5, 6, 7], [-1, 0, 1, 2, 3, 4])
    rows = 2 * torch.randn(6, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    played = Played(Guide(exit_law(chain, rows), 0, DEPTHS), rows, accepted=2, correction=9)
    entries, denominator = opd_loss([played], decay=0.8)
    assert list(zip(entries.rows.tolist(), entries.tokens.tolist(), entries.kinds.tolist(), strict=True)) == [
        (0, 3, TWO_OUTCOME_KL), (1, 4, TWO_OUTCOME_KL), (2, 9, TWO_OUTCOME_KL),
        (2, 5, REVERSE_KL), (3, 6, REVERSE_KL), (4, 7, REVERSE_KL),
    ]  # fmt: skip
    assert entries.weights.tolist() == pytest.approx([1, 1, 1, 0.8**2, 0.8**3, 0.8**4])
    assert float(denominator) == pytest.approx(3 + 0.8**2 + 0.8**3 + 0.8**4)
    p = torch.softmax(rows, -1)
    expected = [p[0, 3], p[1, 4], p[2, 9], p[2, 5], p[3, 6], p[4, 7]]
    assert entries.teacher.tolist() == pytest.approx([float(x) for x in expected], rel=1e-5)


def force_root(target, token):
    """Make the prefill (the one call with a single row) choose `token`; undone by `del target.logits`."""
    real, forced = target.logits, torch.full((128,), -50.0)
    forced[token] = 50.0
    target.logits = lambda hidden: forced if hidden.ndim == 1 else real(hidden)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma4"])
def test_trees_in_training_are_those_of_decoding(family):
    """Same tokens, same C_p (1e-4) as `speculate` records for the same context, sampled text included."""
    target = make_target(family)
    drafter = make_drafter(target)
    texts = texts_of(target, temperature=0.8)[:2]
    anchors = torch.tensor([[texts[0].prompt_length, 15], [texts[1].prompt_length + 3, 20]])
    grown = grow(
        target, drafter, collate(texts), anchors, torch.ones(2, 2, dtype=torch.bool), budget=9, temperature=1.0
    )
    for one in grown:
        anchor = int(anchors[one.row, one.column])
        ids = texts[one.row].ids
        force_root(target, int(ids[anchor]))
        round_ = speculate(
            target, drafter, ids[:anchor], budget=9, temperature=1.0, max_new_tokens=2, stop={-1}, seed=0
        ).rounds[0]
        del target.logits
        assert round_.tree.tokens.tolist() == one.tree.tokens.tolist()
        assert round_.tree.parents.tolist() == one.tree.parents.tolist()
        assert round_.coverage == pytest.approx(float(one.law.coverage), abs=1e-4)


def test_replayed_rounds_are_those_of_greedy_chain_decoding():
    """Anchors, drafts, accepted lengths and corrections of a whole response, at an acceptance that is not trivial."""
    target = make_target()
    text = texts_of(target)[1]
    drafter = AimedDrafter(make_drafter(target).config).aim(
        target, text.ids.tolist(), decoy=lambda position: 1.5 if position % 5 == 0 or position % 7 == 0 else 0.0
    )
    prompt = text.ids[: text.prompt_length]
    played = replay(target, drafter, collate([text]), [text.prompt_length])[0]
    decoded = speculate(
        target, drafter, prompt, budget=drafter.depth, builder="chain", max_new_tokens=24, stop={-1}
    ).rounds
    assert 2 < len(played) <= len(decoded) and len({one.accepted for one in played}) > 1
    at = text.prompt_length
    for mine, theirs in zip(played, decoded, strict=False):
        assert (mine.anchor, mine.root, mine.drafted) == (at, theirs.tree.token(0), theirs.tree.tokens[1:].tolist())
        assert (mine.accepted, mine.correction) == (len(theirs.path) - 1, theirs.bonus)
        at += theirs.length


def test_texts_are_replayed_together_as_alone():
    """Different lengths and starts side by side: no text's rounds depend on the others; `most` counts per text."""
    target = make_target()
    drafter = make_drafter(target)
    texts = texts_of(target)[:3]
    starts = [texts[0].prompt_length, texts[1].prompt_length + 4, len(texts[2].ids) - 1]
    together = replay(target, drafter, collate(texts), starts)
    for text, start, mine in zip(texts, starts, together, strict=True):
        assert replay(target, drafter, collate([text]), [start]) == [mine]
    assert len(together[0]) > 3 and together[2] == []
    assert replay(target, drafter, collate(texts), starts, most=2) == [rounds[:2] for rounds in together]


@pytest.mark.parametrize("objective", ["exit", "prefix", "gain"])
def test_guidance_of_weight_zero_is_finetuning_bit_for_bit(tmp_path, objective):
    """lambda = 0 leaves the very weights of the token loss alone; any other lambda does not."""
    target = make_target()
    texts = texts_of(target)
    ends = []
    for changes in ({"objective": "finetune"}, {"objective": objective, "guidance": 0.0}, {"objective": objective}):
        drafter = make_drafter(target, block_size=6)
        train(target, drafter, texts, texts[:2], config_of(**changes), tmp_path / str(len(ends)))
        ends.append(torch.cat([p.flatten() for p in drafter.parameters()]))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("objective", ["exit", "prefix", "gain", "opd"])
def test_kept_keys_change_nothing_but_the_time(tmp_path, objective):
    """Training with the sequences' keys kept, or with features and keys made anew in every step, ends where training
    on stored features with one pass over sequences and trees ends (up to Adam's magnified rounding)."""
    target = make_target()
    texts = texts_of(target)
    ends = []
    for changes in ({}, {"key_store_gb": 0.5}, {"online": True}):
        drafter = make_drafter(target, block_size=6)
        config = config_of(objective=objective, learning_rate=1e-4, **changes)
        train(target, drafter, texts, texts[:2], config, tmp_path / str(len(ends)))
        ends.append(torch.cat([p.detach().flatten() for p in drafter.parameters()]))
    start = torch.cat([p.detach().flatten() for p in make_drafter(target, block_size=6).parameters()])
    assert float((ends[0] - start).abs().max()) > 3e-4
    for other in ends[1:]:
        torch.testing.assert_close(ends[0], other, atol=5e-5, rtol=0)


@pytest.mark.parametrize("objective", ["finetune", "exit", "gain", "opd"])
def test_accumulated_passes_are_one_whole_batch(tmp_path, objective):
    """Sequences of 2 and of 24 supervised tokens, together or one after the other: the same update, no mean of means,
    the trees' denominators included (transformers#34191)."""
    target = make_target()
    long, short = texts_of(target)[:2]
    short = dataclasses.replace(
        short, ids=short.ids[: short.prompt_length + 3], features=short.features[: short.prompt_length + 3]
    )
    ends = []
    for accumulate in (1, 2):
        drafter = make_drafter(target, block_size=6)
        config = config_of(objective=objective, accumulate=accumulate, steps=1, validate_every=1, learning_rate=1e-2)
        train(target, drafter, [long, short], [long], config, tmp_path / str(accumulate))
        ends.append(torch.load(tmp_path / str(accumulate) / "state.pt", weights_only=True)["optimiser"]["state"])
    for mine, theirs in zip(ends[0].values(), ends[1].values(), strict=True):
        torch.testing.assert_close(mine["exp_avg"], theirs["exp_avg"], atol=1e-6, rtol=1e-5)


def test_what_objectives_add_up_is_their_definition():
    """L = L_tok + lambda L_exit with the means of Eqs. 14 and 15, from one batch's plan, by hand."""
    target = make_target()
    drafter = make_drafter(target, block_size=6).requires_grad_(True)
    texts = texts_of(target)[:3]
    batch = collate(texts)
    keys = draw_uniforms(batch.lengths, [5, 6, 7])
    parts = {}
    for objective in ("finetune", "exit"):
        config = config_of(objective=objective, guidance=24.0)
        planned = plan(target, drafter, batch, texts, config, keys)
        total, each = loss(target, drafter, batch, planned, config, planned.denominators)
        parts[objective] = float(total.detach()), dict(zip(PARTS, each.tolist(), strict=True))
        assert planned.trees == (9 if objective == "exit" else 0)
    assert parts["exit"][1]["token"] == pytest.approx(parts["finetune"][0], rel=1e-5)
    total, each = parts["exit"]
    assert each["exit"] > 0 and total == pytest.approx(each["token"] + 24 * each["exit"], rel=1e-5)
    config = config_of(objective="exit", guidance=24.0, gain_guidance=2.0)
    planned = plan(target, drafter, batch, texts, config, keys)
    both, each = loss(target, drafter, batch, planned, config, planned.denominators)
    gain = each[PARTS.index("gain")]
    assert float(gain) > 0 and float(both.detach()) == pytest.approx(total + 2 * float(gain), rel=1e-5)
    grown = grow(
        target, drafter, batch, planned.anchors, planned.kept, budget=9, temperature=1.0
    )  # at all anchors: the plan's trees are among them
    assert 0 < planned.coverage / planned.trees < 5 and len(grown) == int(planned.kept.sum())


def test_a_tree_teaches_the_rows_of_its_own_anchor():
    """Trees stand at some of the anchors: what each teaches is taught to that anchor's block and to no other."""
    target = make_target()
    drafter = make_drafter(target, block_size=6)
    texts = texts_of(target)[:3]
    batch = collate(texts)
    config = config_of(objective="exit", trees=2)
    planned = plan(target, drafter, batch, texts, config, draw_uniforms(batch.lengths, [5, 6, 7]))
    exits = planned.entries.parts == PARTS.index("exit")
    taught: dict[int, set] = {}
    for row, token in zip(planned.entries.rows[exits].tolist(), planned.entries.tokens[exits].tolist(), strict=True):
        taught.setdefault(row // 5, set()).add((row % 5 + 1, token))
    width, everywhere = planned.anchors.shape[1], {}
    for one in grow(target, drafter, batch, planned.anchors, planned.kept, budget=9, temperature=1.0):
        nodes = zip(one.tree.depths.tolist(), one.tree.tokens.tolist(), one.law.w.tolist(), strict=True)
        everywhere[one.row * width + one.column] = {(depth, token) for depth, token, w in nodes if depth and w > 0}
    assert len(taught) == 6 and all(taught[place] == everywhere[place] for place in taught)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"objective": "tree"}, "unknown objective 'tree': choose one of base, finetune"),
        ({"guidance": -1.0}, "guidance must be a finite number >= 0, got -1.0"),
        ({"objective": "exit", "guidance": 0.0, "token_weight": 0.0}, "nothing to learn"),
        ({"gain_share": "half"}, "gain_share must be one of all, missing, present, root, got 'half'"),
        ({"trees": 0}, "trees must be at least 1, got 0"),
        ({"opd_decay": 0.0}, r"opd_decay must lie in \(0, 1\], got 0"),
        ({"tree_temperature": float("nan")}, "tree_temperature must be a finite number"),
    ],
)
def test_bad_choices_are_refused_by_name(bad, message):
    """Before a model is loaded."""
    with pytest.raises(ValueError, match=message):
        config_of(**bad)


def test_a_text_of_the_target_s_own_throughout_is_refused(tmp_path):
    """A loss mask that covers everything, or nothing, is an error, not a silent choice (a prompt is never empty)."""
    target = make_target()
    texts = texts_of(target)
    texts[0].prompt_length = 0
    with pytest.raises(ValueError, match="rollout 0 has no prompt"):
        train(target, make_drafter(target), texts, texts[1:2], config_of(), tmp_path)
