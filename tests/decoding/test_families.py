"""Every target family, tiny and random, in float32: what holds for one architecture holds for each."""

import sys
from pathlib import Path

import pytest
import torch
from accelerate.big_modeling import attach_align_device_hook_on_blocks
from torch._subclasses import FakeTensorMode
from transformers import AutoModelForCausalLM, Gemma4UnifiedTextConfig

from tests.tiny import CONFIGS, WINDOW, AimedDrafter, make_drafter, make_target
from tests.training.texts import made, quick
from tevlib.decoding.cache import KVCache, LayerKeys, Layout
from tevlib.decoding.decode import autoregressive, draft, speculate
from tevlib.decoding.decode_fixed import decode_fixed
from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.layers import FULL, layer_keys
from tevlib.decoding.load import load_target
from tevlib.decoding.target import Target, TargetInfo
from tevlib.sources.chat import chat_ids
from tevlib.training.initialise import _sources, drafter_config, drafter_from_target
from tevlib.training.train import train
from tevlib.trees import predraw, verifiers
from tevlib.trees.builders import best_first_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.verifiers import VERIFIERS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trees"))
from tree_reference import assert_same_law, enumerate_law, exits_in_order, joint_law

FAMILIES = sorted(set(CONFIGS) - {"mistral"})
SLIDING = [family for family in FAMILIES if family.startswith("gemma")]
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 6, 7, 4]  # siblings at every depth, slot and depth apart
NEVER = frozenset({-1})
SEAMS = [(module, name) for module in (verifiers, predraw) for name in ("categorical", "uniform", "multinomial")]


@pytest.fixture(scope="module", params=FAMILIES)
def target(request):
    return endless(request.param)


@pytest.fixture(scope="module", params=SLIDING)
def sliding(request):
    return endless(request.param)


def endless(family, **changes):
    """A target without an end token, so that answers have the length that is asked for."""
    target = make_target(family, **changes)
    target.model.generation_config.eos_token_id = None
    return target


def ids_of(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, 128, (n,), generator=torch.Generator().manual_seed(seed))


def theirs(target, ids) -> torch.Tensor:
    """Transformers' own logits `[n, V]` of a plain sequence, its own masks and all."""
    with torch.no_grad():
        return target.model(input_ids=torch.as_tensor(ids)[None], use_cache=False).logits[0].float()


def check_tree_pass(target, length: int) -> None:
    """AssertionError unless every node's logits are those of a plain forward on prompt and path."""
    prompt, tree = ids_of(length), DraftTree(range(60, 60 + len(PARENTS)), PARENTS)
    cache = target.new_cache(length + len(tree))
    target.prefill(cache, prompt)
    logits, _ = target.score_tree(cache, tree)
    for node in range(len(tree)):
        own = theirs(target, [*prompt.tolist(), 60, *tree.path(node)])[-1]
        torch.testing.assert_close(logits[node], own, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [6, 30])
def test_tree_pass_is_a_forward_per_path(target, length):
    """Below and beyond the window: a node sees its ancestors by position, in each kind of layer (cascadia#151)."""
    check_tree_pass(target, length)


@pytest.mark.parametrize("family", FAMILIES)
def test_tree_pass_with_the_attention_of_a_gpu(family):
    """The same with transformers' sdpa, which takes masks of all keys."""
    target = endless(family)
    target.model.set_attn_implementation("sdpa")
    check_tree_pass(type(target)(target.model, target.tokenizer, target.info), 30)


WINDOWS = {
    "some layers, by a count": lambda: make_target(
        "qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "all layers, no kinds": lambda: make_target("mistral", sliding_window=WINDOW),
}


@pytest.mark.parametrize("stated", WINDOWS)
def test_windows_stated_otherwise(stated):
    """Windows that a configuration gives by a number of layers, or for all of them without naming kinds."""
    target = WINDOWS[stated]()
    assert target.layout.windows == {WINDOW}
    check_tree_pass(target, 30)


def test_keys_of_a_model_of_full_size():
    """48 layers of a Gemma 4 by the configuration alone: 40 look back 1,024, 8 see all with one key head of 512."""
    config = Gemma4UnifiedTextConfig(
        num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=8, head_dim=256, global_head_dim=512,
        num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=1024,
    )  # fmt: skip
    layout = Layout(layer_keys(config, [torch.device("meta")] * 48))
    shapes = [(kept.heads, kept.head_dim) for kept in layout.shapes]
    assert shapes == [(8, 256), (1, 512)] and [len(group) for group in layout.groups] == [40, 8]
    assert layout.windows == {1024} and layout.layers[5].window is None and layout.layers[4].window == 1024


def test_broken_variants_are_noticed(sliding, monkeypatch):
    """A window that is one off, slots for positions, one mask for all, too few keys, no soft-cap: none passes."""
    for window in (WINDOW - 1, WINDOW + 1):
        off = Layout([kept and kept._replace(window=kept.window and window) for kept in sliding.layout.layers])
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(sliding, "window", window)
            patch.setattr(sliding, "layout", off)
            check_tree_pass(sliding, 30)
    masks, first, positions = sliding._masks, KVCache._first, KVCache.key_positions
    slots = lambda shown, at, cache: masks(shown, cache.length + torch.arange(at.shape[1])[None], cache)  # noqa: E731
    broken = [
        (sliding, "_masks", slots),
        (sliding, "_masks", lambda shown, at, cache: {kind: masks(shown, at, cache)[FULL] for kind in sliding.kinds}),
        (KVCache, "_first", lambda self, window: first(self, window and window - 1)),
        (KVCache, "key_positions", lambda self, new, window: positions(self, new, None)),
        (sliding, "softcap", None),
    ]
    for owner, name, value in broken:
        with monkeypatch.context() as patch, pytest.raises((AssertionError, RuntimeError)):
            patch.setattr(owner, name, value)
            check_tree_pass(sliding, 30)


def test_prefill_in_chunks_equals_one_pass(target, monkeypatch):
    """Chunks that begin inside and behind a window give the logits and features of one plain pass."""
    ids = ids_of(50)
    monkeypatch.setattr("tevlib.decoding.target.PREFILL_CHUNK", 13)
    logits, features = target.prefill(target.new_cache(50), ids, taps=(0, 2))
    with torch.no_grad():
        plain = target.model(input_ids=ids[None], use_cache=False, output_hidden_states=True)
    torch.testing.assert_close(logits, plain.logits[0, -1].float(), atol=1e-5, rtol=1e-5)
    expected = torch.cat([plain.hidden_states[1][0], plain.hidden_states[3][0]], dim=-1)
    torch.testing.assert_close(features, expected, atol=5e-5, rtol=1e-5)


def test_commit_equals_a_fresh_prefill(target):
    """All rejected, then three accepted out of order, with a full window: keys as of a plain text (transformers#47447).

    Every layer that keeps keys keeps those of a fresh prefill, and the next logits are transformers' own.
    """
    prompt, tree = ids_of(20), DraftTree([60, 61, 62, 63, 64, 65], [-1, 0, 0, 1, 1, 2])
    cache, text = target.new_cache(64), ids_of(20).tolist()
    target.prefill(cache, prompt)
    for path in ([0], [0, 2, 5], [0, 1, 4]):
        target.score_tree(cache, tree)
        cache.commit(path)
        text += [int(tree.tokens[node]) for node in path]
    fresh = target.new_cache(64)
    target.prefill(fresh, torch.tensor(text))
    assert cache.length == fresh.length == len(text) and cache.views.keys() == fresh.views.keys()
    for layer, keys in cache.views.items():
        expected = fresh.views[layer][..., : len(text), :]
        torch.testing.assert_close(keys[..., : len(text), :], expected, atol=5e-5, rtol=1e-5)
    after, _ = target.prefill(cache, torch.tensor([60]))
    torch.testing.assert_close(after, theirs(target, [*text, 60])[-1], atol=1e-5, rtol=1e-5)


def aimed(target, prompt, answer):
    drafter = AimedDrafter(make_drafter(target).config).eval()
    return drafter.aim(target, [*prompt, *answer], lambda position: 1.2 * (position % 3 == 0))


@pytest.mark.parametrize("length", [6, 30, 200])
def test_greedy_tokens_are_those_of_generate(target, length):
    """64 tokens at T = 0 are `generate(do_sample=False)`'s, by trees that are right on side branches too."""
    prompt = ids_of(length, seed=length)
    answer = target.model.generate(
        prompt[None], attention_mask=torch.ones_like(prompt[None]), max_new_tokens=64, do_sample=False, pad_token_id=3
    )[0, length:].tolist()
    assert len(answer) == 64 and len(set(answer)) > 2
    got = speculate(target, aimed(target, prompt.tolist(), answer), prompt, budget=16, max_new_tokens=64, stop=NEVER)
    assert got.tokens == answer and got.tau > 2.5
    if length == 30:
        assert autoregressive(target, prompt, max_new_tokens=64, stop=NEVER).tokens == answer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_of_two_turns(family):
    """The second turn, with the first one's answer in it, is `generate`'s; a kept common prefix changes no logit."""
    target = endless(family)
    target.tokenizer.chat_template = "{{ bos_token }}{% for m in messages %} <unk> {{ m['content'] }} <unk>{% endfor %}"
    messages, ids, cache = [], [], target.new_cache(128)
    for text in ("t7 t30 t41 t9 t77 t33 t50 t88", "t12 t100 t55"):
        messages.append({"role": "user", "content": text})
        before, ids = ids, chat_ids(target.tokenizer, messages)
        answer = target.model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(), max_new_tokens=24, do_sample=False,
            pad_token_id=3,
        )[0, len(ids) :].tolist()  # fmt: skip
        got = speculate(target, aimed(target, ids, answer), ids, budget=8, max_new_tokens=24, stop=NEVER)
        assert got.tokens == answer
        shared = next((i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))
        cache.keep_first(shared)
        reused, _ = target.prefill(cache, torch.tensor(ids[shared:]))
        torch.testing.assert_close(reused, theirs(target, ids)[-1], atol=1e-5, rtol=1e-5)
        target.prefill(cache, torch.tensor(answer))  # the answer stays behind the prompt and is forgotten next turn
        messages.append({"role": "assistant", "content": target.tokenizer.decode(answer)})
    assert shared == len(before) > WINDOW and ids.count(0) == 1


@pytest.mark.parametrize(
    ("family", "ends"), [("llama3", {1, 6, 7}), ("gemma4", {1, 106}), ("gemma4_unified", {1, 106})]
)
def test_every_stop_id_ends_an_answer(family, ends):
    """An end that only the generation settings name cuts the answer inside a block, streamed too (vllm#4180).

    `length` counts what was verified, `emitted` what entered the answer (vllm#56101).
    """
    target, prompt = make_target(family), ids_of(12).tolist()
    assert target.stop_ids == ends
    free = autoregressive(target, prompt, max_new_tokens=24, stop=NEVER).tokens
    drafter = aimed(target, prompt, free)
    drafter.decoy = lambda position: 0.0
    place = next(i for i in range(4, 24) if free[i] not in free[:i] and (i - 1) % 8 < 6)
    target.model.generation_config.eos_token_id = [127, free[place]]
    streamed = []
    settings = dict(budget=7, builder="chain", max_new_tokens=24)
    got = speculate(target, drafter, prompt, **settings, on_tokens=streamed.extend)
    assert got.tokens == streamed == free[: place + 1] == autoregressive(target, prompt, max_new_tokens=24).tokens
    assert got.stop_reason == "stop" and 1 + sum(r.emitted for r in got.rounds) == len(got.tokens)
    assert got.rounds[-1].length > got.rounds[-1].emitted


def test_the_embedding_is_what_the_first_layer_reads(target):
    """A drafter's block is embedded as the target embeds: scaled in the families that scale (Gemma)."""
    seen, drafter = {}, make_drafter(target)
    hook = target.decoder.layers[0].register_forward_pre_hook(lambda _m, args: seen.update(states=args[0]))
    target.prefill(target.new_cache(8), torch.tensor([60] + [drafter.mask_id] * 7))
    hook.remove()
    block = block_embeddings(target, drafter, torch.tensor(60))
    torch.testing.assert_close(seen["states"][0], block, atol=0, rtol=0)
    raw = target.embed.weight[torch.tensor([60])]
    assert torch.equal(block[:1], raw) == (target.window is None)


def test_softcap_changes_trees(sliding):
    """A soft-cap keeps the order in a row but not between depths: the tree is that of the capped scores, no other."""
    prompt = ids_of(20).tolist()
    drafter = aimed(sliding, prompt, autoregressive(sliding, prompt, max_new_tokens=8, stop=NEVER).tokens)
    _, features = sliding.prefill(sliding.new_cache(20), torch.tensor(prompt), drafter.taps)
    log_probs = draft(sliding, drafter, drafter.new_cache(40), 60, 7, features)
    block = block_embeddings(sliding, drafter, torch.tensor(60))
    plain = sliding.head(drafter.draft(drafter.new_cache(40), block, features)).float()
    capped = (torch.tanh(plain / 5.0) * 5.0).log_softmax(-1)
    torch.testing.assert_close(log_probs, capped, atol=1e-5, rtol=1e-5)
    assert torch.equal(plain.argmax(-1), log_probs.argmax(-1))
    mine, right, wrong = (best_first_tree(rows, 16, 60) for rows in (log_probs, capped, plain.log_softmax(-1)))
    assert mine.tokens.equal(right.tokens) and mine.parents.equal(right.parents)
    assert not (mine.tokens.equal(wrong.tokens) and mine.parents.equal(wrong.parents))


@pytest.mark.parametrize("family", FAMILIES)
def test_law_by_enumeration(family, monkeypatch):
    """T = 1, 8 tokens: (exit, bonus) of a drafted tree's pass has exactly the law of the target's own continuation.

    All draws of the verifiers are enumerated; the expected law is from transformers' forward on every path.
    """
    target = endless(family, vocab_size=8, eos_token_id=1)
    drafter, prompt = make_drafter(target), torch.randint(4, 8, (20,), generator=torch.Generator().manual_seed(2))
    _, features = target.prefill(cache := target.new_cache(32), prompt, drafter.taps)
    whole = best_first_tree(draft(target, drafter, drafter.new_cache(40), 6, 7, features), 7, 6)
    assert max(whole.depths) > 1
    for name, nodes in (("tev", 8), ("sequential_residual", 8), ("predraw", 3)):
        tree = whole.prefix(nodes)
        rows, _ = target.score_tree(cache, tree)
        own = [theirs(target, [*prompt.tolist(), 6, *tree.path(node)])[-1] for node in range(len(tree))]
        laws = torch.stack(own).double().softmax(-1).tolist()
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()

        def run(name=name, tree=tree, rows=rows):
            verdict = VERIFIERS[name](tree, rows, 1.0, None)
            return verdict.node, verdict.bonus

        pieces = [w for _, w in exits_in_order(tokens, parents, rows.double().softmax(-1).tolist())]
        seams = [(module, draw) for module, draw in SEAMS if draw in vars(module)]
        law = enumerate_law(run, monkeypatch, *seams, pieces=pieces)
        assert_same_law(law, joint_law(tokens, parents, laws), 1e-5)


def test_bfloat16_differs_only_at_ties(sliding):
    """In bfloat16 the first difference from plain decoding has a top-2 margin within rounding (vllm#54928)."""
    target = endless(sliding.config.model_type.removesuffix("_text"), dtype=torch.bfloat16)
    drafter = make_drafter(target)
    for seed in range(2):
        prompt = ids_of(12, seed).tolist()
        plain = autoregressive(target, prompt, max_new_tokens=32).tokens
        tree = speculate(target, drafter, prompt, budget=16, max_new_tokens=32).tokens
        first = next((i for i, (a, b) in enumerate(zip(plain, tree, strict=True)) if a != b), None)
        if first is not None:
            logits, _ = target.prefill(target.new_cache(80), torch.tensor(prompt + plain[:first]))
            top = logits.topk(2).values
            assert float(top[0] - top[1]) < 0.05 * float(logits.std()), f"prompt {seed}, token {first}"


@pytest.mark.parametrize("family", FAMILIES)
def test_one_exit_train_step(family, tmp_path):
    """A step of ExitTrain on the target's own texts moves the drafter and not one bit of the target (trl#5862)."""
    target = make_target(family)
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    texts = made(target, temperature=1.0)[:2]
    for text in texts:  # rollouts in rows of their own: the features are those of one plain pass
        _, features = target.prefill(target.new_cache(64), text.ids, (0, 2))
        torch.testing.assert_close(text.features[:-1], features[:-1], atol=1e-4, rtol=1e-4)
    drafter = make_drafter(target, block_size=4)
    start = [p.detach().clone() for p in drafter.parameters()]
    rows = train(target, drafter, texts, texts, quick(steps=1, objective="exit", validate_every=1), tmp_path)
    assert rows[-1]["skipped"] == 0 and rows[-1]["loss"] > 0
    assert all(not torch.equal(a, b) for a, b in zip(start, drafter.parameters(), strict=True))
    assert all(torch.equal(before[name], value) for name, value in target.model.state_dict().items())
    assert all(p.grad is None for p in target.model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafter_starts_from_layers_of_any_family(family):
    """Norms stated as 1 + w, other scales of scores, layers of two shapes: what the target's norms and scores do.

    A first layer that is handed the same states has the same keys as the target's, and as sharp scores.
    """
    target = make_target(family)
    layers = 1 if family == "gemma4" else 2
    drafter = drafter_from_target(target, ids_of(20), layers=layers, block_size=4, taps=(0, 2), seed=0, mask_id=5)
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    source, mine = _sources(target, layers)[0], drafter.layers[0]
    torch.testing.assert_close(mine.input_layernorm(x), source.input_layernorm(x), atol=1e-5, rtol=1e-5)
    keys = source.self_attn.k_proj(source.input_layernorm(x)).view(1, 6, 2, 16)
    if "q_norm" in dict(source.self_attn.named_children()):
        own = mine.self_attn.k_norm(mine.self_attn.k_proj(mine.input_layernorm(x)).view(1, 6, 2, 16))
        torch.testing.assert_close(own, source.self_attn.k_norm(keys), atol=1e-5, rtol=1e-5)
        query = torch.randn(1, 6, 4, 16, generator=torch.Generator().manual_seed(1))
        scaled = source.self_attn.q_norm(query) * source.self_attn.scaling
        torch.testing.assert_close(mine.self_attn.q_norm(query) * 16**-0.5, scaled, atol=1e-5, rtol=1e-5)


def test_rounds_of_fixed_shape_refuse_windows(sliding):
    """Graphs serve full attention of one shape: another target is refused by name, not served wrongly."""
    with pytest.raises(ValueError, match=r"rounds of fixed shape serve layers of full attention.*windows \[8\]"):
        decode_fixed(sliding, make_drafter(sliding), [7, 9, 30], budget=4, max_new_tokens=4)


def test_keys_stay_with_their_layers():
    """Layers on two devices and of two shapes: each group is allocated, filled and committed where its layers are."""
    cpu, meta = torch.device("cpu"), torch.device("meta")
    layout = Layout([LayerKeys(2, 4, cpu), LayerKeys(1, 8, cpu), LayerKeys(2, 4, meta), LayerKeys(2, 4, cpu), None])
    cache = KVCache.of(layout, 16, torch.float32)
    assert layout.groups == [[0, 3], [1], [2]] and [store.device for store in cache.stores] == [cpu, cpu, meta]
    for layer, (heads, size, device, _) in enumerate(layout.layers[:4]):
        new = torch.arange(5.0).view(1, 1, 5, 1).expand(1, heads, 5, size).to(device)
        keys, _ = cache.update(new, new, layer)
        assert keys.shape == (1, heads, 5, size) and keys.device == device
    cache.commit([0, 2, 4])
    for layer in (0, 1, 3):
        assert cache.views[layer][0, 0, 0, :3, 0].tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="no single store"):
        cache.store  # noqa: B018


class FakeTree:
    """Shapes of a tree, without values: all that a pass looks at."""

    def __init__(self, n: int, device):
        self.tokens = torch.zeros(n, dtype=torch.long, device=device)
        self.depths, self.ancestors = self.tokens, torch.ones(n, n, dtype=torch.bool, device=device)

    def __len__(self) -> int:
        return len(self.tokens)


def move(module, device) -> None:
    """What `module.to(device)` does, for fake tensors."""
    for part in module.modules():
        for key, value in part._parameters.items():
            part._parameters[key] = value if value is None else torch.nn.Parameter(value.detach().to(device), False)
        for key, value in part._buffers.items():
            part._buffers[key] = value if value is None else value.to(device)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4", "gemma4_unified"])
def test_a_pass_over_two_devices(family):
    """Embedding and first layers on one device, the others, norm and head on another: no operation mixes them.

    Torch's fake tensors know devices that are not there and refuse to mix them; they have no values. Two indices of
    the CPU stand for two GPUs, Accelerate's hooks are those of a device map.
    """
    near, far = torch.device("cpu"), torch.device("cpu", 1)
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(CONFIGS[family](), attn_implementation="sdpa", dtype=torch.float32)
        names = {module: name for name, module in model.named_modules()}
        stack, stem = model.get_decoder(), names[model.get_decoder()]
        parents = [("", model), ("model.", model.model)] + ([(f"{stem}.", stack)] if stem != "model" else [])
        tops = [prefix + name for prefix, module in parents for name, _ in module.named_children()]
        places = {name: near for name in tops if name not in ("model", stem, f"{stem}.layers")}
        places |= {f"{stem}.layers.{i}": (near, far)[i > 1] for i in range(4)} | {f"{stem}.norm": far, "lm_head": far}
        for name, device in places.items():
            move(model.get_submodule(name), device)
        attach_align_device_hook_on_blocks(
            model, places, dict.fromkeys(places, False), skip_keys=model._skip_keys_device_placement
        )
        model.hf_device_map = places
        target = Target(model, None, TargetInfo("two devices", "none", "float32", 0, "two"))
        kept = [keys and keys.device for keys in target.layout.layers]
        assert kept == [near, near, *((None, None) if family == "gemma4" else (far, far))] and target.device == far
        drafter = DFlashDraftModel(drafter_config(target, 2, 8, (0, 2), mask_id=5))
        move(drafter, far)
        cache = target.new_cache(64)
        logits, features = target.prefill(cache, torch.zeros(20, dtype=torch.long, device=far), drafter.taps)
        block = block_embeddings(target, drafter, torch.zeros((), dtype=torch.long, device=far))
        states = drafter.draft(drafter.new_cache(40), block, features)
        rows, node_features = target.score_tree(cache, FakeTree(9, far), drafter.taps)
        assert {x.device for x in (logits, features, block, states, rows, node_features)} == {far}
        with pytest.raises(RuntimeError, match="same device"):
            features + torch.zeros(1, device=near).expand_as(features)


@pytest.fixture(scope="module", params=["qwen3_moe", "gemma4"])
def folder(request, tmp_path_factory):
    made = make_target(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def test_device_map(folder):
    """A map over memory and disk, weights fetched as layers run: T = 0 gives the tokens of the whole model.

    Heads and embeddings that a drafter reads must stay; a device that is not there, and device and map at once, are
    refused.
    """
    whole = load_target(folder, "float32", device="cpu")
    parts = [name for name, _ in whole.model.named_children() if name != "model"]
    places = dict.fromkeys([*parts, *(f"model.{name}" for name, _ in whole.decoder.named_children())], "cpu")
    del places["model.layers"]
    places |= {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(4)}
    split = load_target(folder, "float32", device_map=places)
    assert split.decoder.layers[1].self_attn.q_proj.weight.device.type == "meta" and split.device.type == "cpu"
    assert split.info.device == "cpu, disk" and split.fingerprint() == whole.fingerprint()
    prompt = ids_of(20)
    for target in (whole, split):
        drafter = make_drafter(target)
        got = speculate(target, drafter, prompt, budget=8, max_new_tokens=12, stop=NEVER)
        assert got.tokens == autoregressive(whole, prompt, max_new_tokens=12, stop=NEVER).tokens
    assert load_target(folder, "float32", device_map="auto").info.parameters == whole.info.parameters
    with pytest.raises(ValueError, match="the device map offloads the head"):
        load_target(folder, "float32", device_map=places | {"lm_head": "disk"})
    with pytest.raises(ValueError, match="device 'cuda:99' cannot be used here"):
        load_target(folder, "float32", device_map={"": 99})
    with pytest.raises(ValueError, match="not both"):
        load_target(folder, "float32", device="cpu", device_map="auto")
