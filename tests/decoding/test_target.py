"""The target: one pass over a tree, taps, cache, what it refuses."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    GPT2Config,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
)

from tests.tiny import CONFIGS, make_target, make_tokenizer
from tevlib.decoding.cache import KVCache
from tevlib.decoding.load import load_target
from tevlib.decoding.target import Target, refuse_inexact
from tevlib.trees.draft_tree import DraftTree

PROMPT = [7, 30, 41, 9, 77, 12, 100]


def random_tree(seed: int, n: int = 12, vocab: int = 128) -> DraftTree:
    g = torch.Generator().manual_seed(seed)
    parents, tokens = [-1], [60]
    while len(parents) < n:
        parent = int(torch.randint(len(parents), (), generator=g))
        token = int(torch.randint(vocab, (), generator=g))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            parents.append(parent)
            tokens.append(token)
    return DraftTree(tokens, parents)


def plain_logits(target, ids: list[int]) -> torch.Tensor:
    """Transformers' own forward on a plain sequence: [n, V]."""
    with torch.no_grad():
        return target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def test_tree_pass_equals_a_plain_forward_per_path(target):
    """Position is depth, not slot, and a node sees its ancestors only (mlxcel#1214, vllm#17560)."""
    cache = target.new_cache(64)
    target.prefill(cache, torch.tensor(PROMPT))
    for seed in range(4):
        tree = random_tree(seed)
        logits, _ = target.score_tree(cache, tree)
        for node in range(len(tree)):
            path = [*PROMPT, int(tree.tokens[0]), *tree.path(node)]
            torch.testing.assert_close(logits[node], plain_logits(target, path)[-1], atol=1e-5, rtol=1e-5)


def test_positions_of_siblings(llama):
    """Nodes [root, a, b, a1] after 7 tokens sit at 7, 8, 8, 9."""
    tree = DraftTree([60, 61, 62, 63], [-1, 0, 0, 1])
    cache = llama.new_cache(32)
    llama.prefill(cache, torch.tensor(PROMPT))
    seen = {}
    hook = llama.decoder.rotary_emb.register_forward_pre_hook(
        lambda _m, _a, kw: seen.update(positions=kw["position_ids"]), with_kwargs=True
    )
    llama.score_tree(cache, tree)
    hook.remove()
    assert seen["positions"][0].tolist() == [7, 8, 8, 9]


@pytest.mark.parametrize("path", [[0], [0, 2, 5], [0, 1], [0, 1, 3]])
def test_commit_equals_a_fresh_prefill(target, path):
    """After any commit every layer's keys and values are those of a prefill of the accepted text (sglang#15360)."""
    tree = DraftTree([60, 61, 62, 63, 64, 65], [-1, 0, 0, 1, 1, 2])
    cache, fresh = target.new_cache(64), target.new_cache(64)
    target.prefill(cache, torch.tensor(PROMPT))
    for _ in range(3):
        target.score_tree(cache, tree)
        cache.commit(path)
    text = PROMPT + [int(tree.tokens[node]) for node in path] * 3
    target.prefill(fresh, torch.tensor(text))
    assert cache.length == fresh.length == len(text)
    torch.testing.assert_close(cache.store[..., : len(text), :], fresh.store[..., : len(text), :], atol=1e-5, rtol=1e-5)


def test_cache_keeps_and_forgets():
    """keep_first(k) on three tokens: 0, 2 and 3 work, 5 is an error (transformers#47433)."""
    for keep in (0, 2, 3):
        cache = KVCache(1, 1, 4, 8, torch.float32, "cpu")
        cache.update(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4), 0)
        cache.commit([0, 1, 2])
        cache.keep_first(keep)
        assert cache.length == keep
    with pytest.raises(ValueError, match="cannot keep 5 of 3"):
        cache.keep_first(5)
    with pytest.raises(ValueError, match="strictly increasing"):
        cache.commit([0, 2, 1])
    with pytest.raises(ValueError, match="holds 8 tokens, 12"):
        cache.update(torch.ones(1, 1, 9, 4), torch.ones(1, 1, 9, 4), 0)


def test_prefill_logits_and_taps_equal_transformers(target):
    """Tapped layer i is transformers' hidden_states[i + 1]; the logits are the model's own."""
    ids = torch.randint(4, 128, (40,), generator=torch.Generator().manual_seed(0))
    logits, features = target.prefill(target.new_cache(64), ids, taps=(0, 2))
    with torch.no_grad():
        reference = target.model(input_ids=ids[None], use_cache=False, output_hidden_states=True)
    torch.testing.assert_close(logits, reference.logits[0, -1].float(), atol=1e-5, rtol=1e-5)
    expected = torch.cat([reference.hidden_states[1][0], reference.hidden_states[3][0]], dim=-1)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)


def test_prefill_in_chunks_equals_one_pass(llama, monkeypatch):
    """Chunking bounds memory, not the result."""
    ids = torch.randint(4, 128, (50,), generator=torch.Generator().manual_seed(0))
    whole, features = llama.prefill(llama.new_cache(64), ids, taps=(1,))
    monkeypatch.setattr("tevlib.decoding.target.PREFILL_CHUNK", 16)
    parts, chunked = llama.prefill(llama.new_cache(64), ids, taps=(1,))
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(features, chunked, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_our_attention_equals_eager(family):
    """Stacked query heads compute what transformers' eager attention does, also when it calls the model itself."""
    target = make_target(family)
    ids = torch.randint(4, 128, (2, 30), generator=torch.Generator().manual_seed(0))
    mine = target.model(input_ids=ids).logits
    target.model.set_attn_implementation("eager")
    torch.testing.assert_close(mine, target.model(input_ids=ids).logits, atol=5e-5, rtol=1e-5)


def test_softcap_is_applied():
    """A soft-cap in the configuration bends the logits: monotone in a row, but not the same log-probabilities."""
    target = make_target()
    hidden = torch.randn(3, 32)
    plain = target.logits(hidden)
    target.softcap = 2.0
    torch.testing.assert_close(target.logits(hidden), torch.tanh(plain / 2.0) * 2.0)


@pytest.mark.parametrize(
    ("generation", "tokenizer", "expected"),
    [([5, 6, 7], 7, {5, 6, 7}), (6, 7, {6, 7}), (None, 7, {7}), (6, None, {6})],
)
def test_stop_ids_are_the_union(llama, generation, tokenizer, expected):
    """Neither the tokenizer's end nor the generation config's is forgotten (transformers#31362)."""
    llama.model.generation_config.eos_token_id = generation
    llama.tokenizer.eos_token = None if tokenizer is None else f"t{tokenizer}"
    assert llama.stop_ids == expected


REFUSED = [
    (
        LlamaConfig(num_hidden_layers=2),
        {"layer_types": ["chunked_attention", "full_attention"]},
        "multiples of a chunk",
    ),
    (LlamaConfig(), {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "keys and values are quantised"),
    (LlamaConfig(), {"kv_lora_rank": 512}, "latent keys"),
    (LlamaConfig(), {"alibi": True}, "ALiBi"),
    (LlamaConfig(), {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    (LlamaConfig(), {"use_bidirectional_attention": "all"}, "see later ones"),
    (LlamaConfig(), {"is_encoder_decoder": True}, "an encoder and a decoder"),
    (AutoConfig.for_model("qwen3_next"), {}, "layers of kind linear_attention: .* cannot be rolled back"),
    (AutoConfig.for_model("qwen3_5").get_text_config(), {}, "linear_attention: .* cannot be rolled back"),
    (AutoConfig.for_model("mamba"), {}, r"layers with a state \(state_size\): .* cannot be rolled back"),
    (AutoConfig.for_model("bamba"), {}, "layers with a state .*mamba_d_state"),
    (AutoConfig.for_model("lfm2"), {}, "layers with a state .*conv_L_cache"),
    (AutoConfig.for_model("gemma2"), {}, "soft-caps attention scores"),
    (AutoConfig.for_model("gemma3n").get_text_config(), {}, "several streams"),
    (GPT2Config(), {}, "states no num_key_value_heads"),
]


@pytest.mark.parametrize(("config", "change", "reason"), REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(config, change, reason):
    """States that hold one path, other windows, quantised or latent keys, other attention: refused with the reason."""
    for name, value in change.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match=f"{config.model_type} is not served: .*{reason}"):
        refuse_inexact(config)


def test_refusals_come_before_the_weights(tmp_path):
    """A hybrid's folder without any weights is refused for its layers; a quantised cache by its generation settings."""
    AutoConfig.for_model("qwen3_next", num_hidden_layers=4).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="qwen3_next is not served: it has layers of kind linear_attention"):
        load_target(tmp_path, dtype="float32", device="cpu")
    made = make_target("qwen3")
    made.model.generation_config.cache_implementation = "quantized"
    with pytest.raises(ValueError, match="qwen3 is not served: its keys and values are quantised"):
        Target(made.model, made.tokenizer, made.info)


def save(target, folder):
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


def test_load_a_folder_and_say_what_it_is(tmp_path):
    """The same logits come back, and the description names source, dtype and size."""
    made = make_target("qwen3")
    loaded = load_target(save(made, tmp_path), dtype="float32", device="cpu")
    ids = torch.tensor(PROMPT)
    torch.testing.assert_close(loaded.prefill(loaded.new_cache(8), ids)[0], made.prefill(made.new_cache(8), ids)[0])
    assert str(tmp_path) in str(loaded.info) and "float32" in str(loaded.info)


def test_tied_head_is_the_embedding(tmp_path):
    """A tied head shares the embedding's storage, with or without a head in the file (vllm#6758)."""
    made = make_target("qwen3", tie_word_embeddings=True)
    save(made, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    for stray in ({}, {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}):
        save_file(tensors | stray, tmp_path / "model.safetensors", metadata={"format": "pt"})
        loaded = load_target(tmp_path, dtype="float32", device="cpu")
        assert loaded.head.weight.data_ptr() == loaded.embed.weight.data_ptr()
        torch.testing.assert_close(plain_logits(loaded, PROMPT), plain_logits(made, PROMPT))


def test_a_head_of_its_own_goes_before_a_tied_flag(tmp_path):
    """A head in the file that is not the embedding is used as transformers uses it, and never overwritten."""
    made = make_target("qwen3", tie_word_embeddings=True)
    save(made, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = torch.randn(128, 32, generator=torch.Generator().manual_seed(0))
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_target(tmp_path, dtype="float32", device="cpu")
    assert torch.equal(loaded.head.weight, head) and torch.equal(loaded.embed.weight, made.embed.weight)
    logits, _ = loaded.prefill(loaded.new_cache(8), torch.tensor(PROMPT))
    torch.testing.assert_close(logits, plain_logits(loaded, PROMPT)[-1], atol=1e-5, rtol=1e-5)


def test_a_missing_head_is_an_error(tmp_path):
    """tie_word_embeddings=False and no head in the file: an error, not random numbers (SpecForge#473)."""
    save(make_target("qwen3"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        load_target(tmp_path, dtype="float32", device="cpu")


def test_a_missing_shard_is_named(tmp_path):
    """Sharded files load; without one of them the error says which (transformers#45079)."""
    made = make_target("qwen3")
    made.model.save_pretrained(tmp_path, max_shard_size="60KB")
    made.tokenizer.save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    loaded = load_target(tmp_path, dtype="float32", device="cpu")
    torch.testing.assert_close(plain_logits(loaded, PROMPT), plain_logits(made, PROMPT))
    shards[1].unlink()
    with pytest.raises(ValueError, match=f"cannot be read: .*{shards[1].name}"):
        load_target(tmp_path, dtype="float32", device="cpu")


def test_what_a_family_adds_to_the_scores_is_noticed(tmp_path):
    """Attention sinks, which fused attention leaves out: refused at load, not served without them."""
    config = GptOssConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=2, num_experts_per_tok=1, eos_token_id=1, pad_token_id=3,
    )  # fmt: skip
    model = GptOssForCausalLM(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.full_like(value, 4.0) if "sinks" in name else torch.randn_like(value) * 0.25)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="its own forward pass and ours differ"):
        load_target(tmp_path, dtype="float32", device="cpu")


def test_a_scaled_head_is_refused(tmp_path):
    """Granite divides its logits: without that every temperature would be another one, so it is refused at load."""
    shape = CONFIGS["llama"]().to_dict()
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = GraniteConfig(**{k: shape[k] for k in keys}, num_key_value_heads=2, logits_scaling=8.0)
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="its own forward pass and ours differ"):
        load_target(tmp_path, dtype="float32")


def test_unknown_targets_are_one_clear_error(tmp_path):
    """A name that is neither file, folder nor reachable hub id says what would be right."""
    with pytest.raises(ValueError, match="neither a folder"):
        load_target("nobody/nothing")
    with pytest.raises(ValueError, match="no folder at"):
        load_target("./nowhere")
    with pytest.raises(ValueError, match="no GGUF file"):
        load_target(tmp_path / "x.gguf")
    with pytest.raises(ValueError, match="device 'gpu' cannot be used here"):
        load_target(tmp_path, device="gpu")
    with pytest.raises(ValueError, match="float33"):
        load_target(tmp_path, dtype="float33")


def test_tokenizer_helper_round_trips():
    """The test tokenizer really tokenizes."""
    assert make_tokenizer()("t7 t30").input_ids == [7, 30]


def test_a_model_class_with_a_state_is_refused():
    """What transformers itself calls stateful, whatever the configuration lacks."""
    from transformers import MambaForCausalLM

    with pytest.raises(ValueError, match="a recurrent state"):
        refuse_inexact(make_target().config, MambaForCausalLM)
