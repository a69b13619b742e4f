"""A new drafter that starts from the target's own late layers."""

from __future__ import annotations

import torch
from transformers import Qwen3Config

from tevlib.decoding.drafter import DFlashDraftModel, embedding_scale
from tevlib.decoding.target import Target


def choose_mask_id(tokenizer, rows: int, explicit: int | None = None) -> int:
    """Id of a row of the target's embedding that no text uses: the block's mask.

    In this order: `explicit`, the tokenizer's mask token, the first row that has no token, the last special token that
    is neither a start, an end, padding nor unknown. `rows` is the height of the embedding. Raises `ValueError` where
    none exists, or where `explicit` is outside the embedding: resizing it would train a row that nobody else has.
    """
    if explicit is not None:
        if not 0 <= explicit < rows:
            raise ValueError(f"mask id {explicit} is not a row of the target's embedding (0 to {rows - 1})")
        return explicit
    if tokenizer.mask_token_id is not None and tokenizer.mask_token_id < rows:
        return tokenizer.mask_token_id
    if len(tokenizer) < rows:
        return len(tokenizer)
    taken = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    added = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special and i not in taken and i < rows]
    if not added:
        raise ValueError("the tokenizer has no mask token, no unused row and no spare special token: give a mask id")
    return max(added)


def drafter_config(target: Target, layers: int, block_size: int, taps: tuple[int, ...], mask_id: int) -> Qwen3Config:
    """The configuration of a drafter of the target's width, as the released checkpoints write it."""
    bad = [i for i in taps if not 0 <= i < target.layers - 1]
    if bad or len(set(taps)) != len(taps) or not taps:
        raise ValueError(
            f"taps {taps} must be distinct layers of 0 to {target.layers - 2} (the last layer's output is normalised)"
        )
    if block_size < 1 or not 1 <= layers <= target.layers:
        raise ValueError(
            f"block_size must be at least 1 and layers 1 to {target.layers}, got {block_size} and {layers}"
        )
    source = target.config
    return Qwen3Config(
        architectures=["DFlashDraftModel"],
        hidden_size=target.hidden_size,
        intermediate_size=source.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=source.num_attention_heads,
        num_key_value_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=source.rms_norm_eps,
        max_position_embeddings=target.context_limit,
        rope_parameters=_rotary(source.rope_parameters),
        layer_types=["full_attention"] * layers,
        max_window_layers=layers,
        tie_word_embeddings=False,
        bos_token_id=source.bos_token_id,
        eos_token_id=source.eos_token_id,
        block_size=block_size,
        num_target_layers=target.layers,
        dflash_config={"mask_token_id": mask_id, "target_layer_ids": list(taps), **_tables(target)},
    )


def _rotary(target_rope: dict) -> dict:
    """A drafter's rotary parameters: the target's own, in a target with one per kind of layer the full layers' theta.

    Those turn only a part of each head, which the drafter's layers do not do.
    """
    if "full_attention" in target_rope:
        return {"rope_type": "default", "rope_theta": target_rope["full_attention"]["rope_theta"]}
    return dict(target_rope)


def _tables(target: Target) -> dict:
    """What another reader must be told of the target's embedding and head, where they are not plain matrices.

    The `dflash` package reads the bare tables of both, and no cap but the drafter's own.
    """
    told = {"final_logit_softcapping": target.softcap, "input_embedding_scale": embedding_scale(target)}
    return {key: value for key, value in told.items() if value not in (None, 1.0)}


@torch.no_grad()
def drafter_from_target(
    target: Target,
    text_ids: torch.Tensor,
    *,
    layers: int,
    block_size: int,
    taps: tuple[int, ...],
    seed: int,
    mask_id: int | None = None,
) -> DFlashDraftModel:
    """A float32 drafter whose layers are the target's last ones, `fc` the identity on the last tap.

    The target has no query and key norms where it is a Llama: ours are set to the size that its queries and keys have
    on `text_ids [n]`, so that attention starts as sharp as the target's. Starting so, a drafter reaches in 200 steps
    what a random one does not in 1,000. Norms are taken by what they do and scores by their scale, so that a Gemma's,
    which are stated otherwise, come over too. Raises `ValueError` for more layers than the target has of one shape.
    """
    mask_id = choose_mask_id(target.tokenizer, target.vocab_size, mask_id)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = DFlashDraftModel(drafter_config(target, layers, block_size, taps, mask_id))
    drafter = drafter.float().to(target.device)
    sources = _sources(target, layers)
    sizes = _query_key_sizes(target, sources, text_ids)
    for mine, theirs, (query, key) in zip(drafter.layers, sources, sizes, strict=True):
        state = {name: value.float() for name, value in theirs.state_dict().items()}
        own = mine.state_dict()
        mine.load_state_dict({name: state.get(name, value) for name, value in own.items()})
        parts, attention = dict(theirs.named_children()), dict(theirs.self_attn.named_children())
        before_mlp = parts.get("pre_feedforward_layernorm", theirs.post_attention_layernorm)
        mine.input_layernorm.weight.copy_(_gains(theirs.input_layernorm))
        mine.post_attention_layernorm.weight.copy_(_gains(before_mlp))
        if "q_norm" in attention:
            sharper = theirs.self_attn.scaling * target.head_dim**0.5
            mine.self_attn.q_norm.weight.copy_(_gains(attention["q_norm"]) * sharper)
            mine.self_attn.k_norm.weight.copy_(_gains(attention["k_norm"]))
        else:
            mine.self_attn.q_norm.weight.fill_(query)
            mine.self_attn.k_norm.weight.fill_(key)
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -target.hidden_size :] = torch.eye(target.hidden_size, device=target.device)
    drafter.hidden_norm.weight.copy_(_gains(sources[0].input_layernorm))
    drafter.norm.weight.copy_(_gains(target.decoder.norm))
    return drafter


def _sources(target: Target, layers: int) -> list[torch.nn.Module]:
    """The last `layers` layers of the target whose key heads are those of a drafter (`target.kv_heads`, `head_dim`)."""
    shape = (target.kv_heads, target.head_dim)
    fitting = [
        layer
        for layer, kept in zip(target.decoder.layers, target.layout.layers, strict=True)
        if kept is not None and kept[:2] == shape
    ]
    if len(fitting) < layers:
        raise ValueError(
            f"only {len(fitting)} layers of the target keep {shape[0]} key heads of {shape[1]}: a drafter that starts "
            f"from them has no {layers} layers"
        )
    return fitting[-layers:]


def _gains(norm: torch.nn.Module) -> torch.Tensor:
    """What an RMS norm multiplies each unit by, whichever way its weights say it."""
    equal = torch.full_like(norm.weight, 1024.0)  # so large that epsilon is nothing
    return norm(equal).float()


def _query_key_sizes(target: Target, layers, text_ids: torch.Tensor) -> list[tuple[float, float]]:
    """Root mean square of each layer's queries and keys on a text."""
    seen: dict = {}
    hooks = [
        module.register_forward_hook(
            lambda _m, _i, out, key=(i, name): seen.__setitem__(key, float(out.float().pow(2).mean().sqrt()))
        )
        for i, layer in enumerate(layers)
        for name, module in (("q", layer.self_attn.q_proj), ("k", layer.self_attn.k_proj))
    ]
    target.prefill(target.new_cache(len(text_ids)), text_ids.to(target.device))
    for hook in hooks:
        hook.remove()
    return [(seen[i, "q"], seen[i, "k"]) for i in range(len(layers))]
