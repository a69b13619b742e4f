"""The DFlash drafter: one pass over a block of masks gives position-wise marginals for the next tokens.

A few Qwen3-style layers read the target's features of the committed text as extra keys and values; the embedding and
the head are the target's own. Row k of a block predicts the token *at* position anchor + k. The tensor names are
those of the released checkpoints (`fc`, `hidden_norm`, `layers.i...`, `norm`), so files go both ways.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config

from tevlib.decoding.attention import grouped_attention
from tevlib.decoding.cache import KVCache
from tevlib.decoding.drafter_config import sights
from tevlib.decoding.target import Target


def default_taps(target_layers: int, n: int) -> tuple[int, ...]:
    """The `n` layers of `target_layers` that DFlash reads by default, spread from layer 1 to the last but two."""
    if n == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (n - 1)) for i in range(n))


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps).to(x.dtype)


class Rotary(nn.Module):
    """Rotary embedding at absolute positions; parameters (theta, scaling) from `config.rope_parameters`.

    The frequencies stay in float32 whatever the model's dtype becomes: rounded to bfloat16, angles at position
    1,000 would be off by up to two radians.
    """

    def __init__(self, config: Qwen3Config):
        super().__init__()
        self.config = config
        inverse, self.scaling = _frequencies(config)
        self.register_buffer("inverse_frequencies", inverse.to(torch.get_default_device()), persistent=False)

    def reset(self) -> None:
        """Compute the frequencies anew: no file has them, so they are void behind `to_empty`."""
        self.inverse_frequencies = _frequencies(self.config)[0].to(self.inverse_frequencies.device)

    def _apply(self, function, recurse: bool = True):
        exact = self.inverse_frequencies
        super()._apply(function, recurse)
        if self.inverse_frequencies.dtype != exact.dtype:
            self.inverse_frequencies = exact.to(self.inverse_frequencies.device)
        return self

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin `[..., head_dim]` in float32 for integer `positions [...]`."""
        angles = positions[..., None].float() * self.inverse_frequencies.float()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def _frequencies(config: Qwen3Config) -> tuple[Tensor, float]:
    """Inverse frequencies `[head_dim / 2]`, on the CPU, and the factor on cos and sin."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope, size = config.rope_parameters, config.head_dim
    with torch.device("cpu"):  # also where a model is made without data, on the meta device
        if rope.get("rope_type", "default") != "default":
            return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
        return 1.0 / rope["rope_theta"] ** (torch.arange(0, size, 2).float() / size), 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x [B, heads, n, dim]` rotated by `cos`, `sin` `[B, n, dim]`."""
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config: Qwen3Config):
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        linear = lambda n, m: nn.Linear(n, m, bias=config.attention_bias)  # noqa: E731
        self.q_proj = linear(config.hidden_size, self.heads * self.dim)
        self.k_proj = linear(config.hidden_size, self.kv_heads * self.dim)
        self.v_proj = linear(config.hidden_size, self.kv_heads * self.dim)
        self.o_proj = linear(self.heads * self.dim, config.hidden_size)
        self.q_norm = RMSNorm(self.dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, kv_heads, n, dim]` of `x [B, n, H]` (fused context features or block states)."""
        batch, n, _ = x.shape
        keys = self.k_norm(self.k_proj(x).view(batch, n, self.kv_heads, self.dim)).transpose(1, 2)
        values = self.v_proj(x).view(batch, n, self.kv_heads, self.dim).transpose(1, 2)
        return rotate(keys, *rope), values

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor | None):
        batch, n, _ = x.shape
        query = rotate(self.q_norm(self.q_proj(x).view(batch, n, self.heads, self.dim)).transpose(1, 2), *rope)
        if mask is None:
            out, _ = grouped_attention(self, query, keys, values, None, self.dim**-0.5)
        else:  # boolean, `[B, 1, 1, n, m]`: never repeated for the query heads that share a key head
            groups = self.heads // self.kv_heads
            scores = torch.matmul(
                query.reshape(batch, self.kv_heads, groups * n, self.dim) * self.dim**-0.5, keys.transpose(-1, -2)
            )
            apart = scores.view(batch, self.kv_heads, groups, n, keys.shape[2])
            scores = apart.masked_fill(~mask, torch.finfo(scores.dtype).min).view_as(scores)
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
            out = torch.matmul(weights, values).view(batch, self.heads, n, self.dim).transpose(1, 2)
        return self.o_proj(out.reshape(batch, n, self.heads * self.dim))


class MLP(nn.Module):
    def __init__(self, config: Qwen3Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Qwen3Config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DFlashDraftModel(PreTrainedModel):
    """The drafter. `config` is a `Qwen3Config` with `block_size`, `num_target_layers` and `dflash_config`.

    Layers of kind `sliding_attention` see keys by position, the context's and the block's alike (`sights`). Its hidden
    states are for the target's own head, soft-cap included: `dflash_config.output_multiplier`, where there is one, is
    already in them.
    """

    config_class = Qwen3Config
    base_model_prefix = ""

    def __init__(self, config: Qwen3Config):
        super().__init__(config)
        dflash = config.dflash_config
        self.block_size: int = config.block_size
        self.mask_id: int = dflash["mask_token_id"]
        self.vocabulary = None  # what it proposes, a `DraftVocabulary`; None: every token
        self.taps: tuple[int, ...] = tuple(dflash["target_layer_ids"])
        self.embedding_scale: float | None = dflash.get("input_embedding_scale")
        self.output_multiplier: float = dflash.get("output_multiplier", 1.0)
        self.sights = sights(config)
        self.fc = nn.Linear(len(self.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Rotary):  # `from_pretrained` makes modules empty and fills them from the file
            module.reset()

    @property
    def depth(self) -> int:
        """H, the number of tokens a draft pass predicts."""
        return self.block_size - 1

    def new_cache(self, capacity: int) -> KVCache:
        """An empty store for the context's keys and values; the block's own are never kept in it."""
        config = self.config
        return KVCache(
            config.num_hidden_layers, config.num_key_value_heads, config.head_dim, capacity, self.dtype, self.device
        )

    def fuse(self, features: Tensor) -> Tensor:
        """Context states `[B, n, H]` from the target's features `[B, n, K * H]`."""
        return self.hidden_norm(self.fc(features.to(self.dtype)))

    def append_context(self, cache: KVCache, features: Tensor) -> None:
        """Commit the keys and values of newly accepted tokens, from the target's `features [n, K * H]` of them."""
        n = len(features)
        if n == 0:
            return
        context = self.fuse(features[None])
        rope = self.rotary(torch.arange(cache.length, cache.length + n, device=self.device)[None])
        for i, layer in enumerate(self.layers):
            cache.update(*layer.self_attn.keys_values(context, rope), i)
        cache.commit(list(range(n)))

    def draft(self, cache: KVCache, block: Tensor, features: Tensor | None = None) -> Tensor:
        """Final hidden states `[n - 1, H]` of rows 1 .. n - 1 for `block [n, H]`: embeddings of anchor and masks.

        `features [c, K * H]` of newly accepted tokens are committed first, as by `append_context`, in the same pass.
        The anchor sits right behind the committed context; the block sees the context and all of itself, except in
        layers that slide or are causal, and leaves nothing in the cache.
        """
        x = block[None].to(self.dtype)
        context = x[:, :0] if features is None else self.fuse(features[None])
        n = context.shape[1]
        anchor, end = cache.length + n, cache.length + n + len(block)
        positions = torch.arange(end, device=self.device)
        rope = self.rotary(positions[None, cache.length :])
        own = (rope[0][:, n:], rope[1][:, n:])
        first = {s: 0 if s.window is None else max(0, anchor + 1 - s.window) for s in self.sights}
        masks = {s: s.visible(positions[anchor:], positions[k:])[None, None, None] for s, k in first.items() if s.masks}
        for i, (layer, sight) in enumerate(zip(self.layers, self.sights, strict=True)):
            normed = layer.input_layernorm(x)
            keys, values = cache.update(*layer.self_attn.keys_values(torch.cat([context, normed], 1), rope), i)
            keys, values = keys[:, :, first[sight] :], values[:, :, first[sight] :]
            x = x + layer.self_attn(normed, own, keys, values, masks.get(sight))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        cache.commit(list(range(n)))
        return self.finish(x)[0, 1:]

    def finish(self, x: Tensor) -> Tensor:
        """What the target's head takes, `[..., H]`, from the last layer's states."""
        states = self.norm(x)
        return states if self.output_multiplier == 1 else states * self.output_multiplier

    def forward(self, features: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Final hidden states `[B, A, block, H]` of many blocks at once: the training pass.

        `features [B, S, K * H]` are the target's; `blocks [B, A, block, H]` the embeddings of anchors and masks;
        `anchors [B, A]` their positions. A block at anchor a sees features of positions < a, and itself (of both what
        `sights` says); blocks do not see each other.
        """
        return self.draft_blocks(self.read_context(features), blocks, anchors)

    def read_context(self, features: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values `[B, kv_heads, S, head_dim]` per layer of a context with `features [B, S, K * H]`."""
        context = self.fuse(features)
        rope = self.rotary(torch.arange(features.shape[1], device=self.device).expand(len(features), -1))
        return [layer.self_attn.keys_values(context, rope) for layer in self.layers]

    def draft_blocks(self, context: list[tuple[Tensor, Tensor]], blocks: Tensor, anchors: Tensor) -> Tensor:
        """`forward` behind what `read_context` gave."""
        batch, n_blocks, size, hidden = blocks.shape
        length = context[0][0].shape[2]
        positions = (anchors[..., None] + torch.arange(size, device=self.device)).flatten(1)
        rope = self.rotary(positions)
        owner = torch.arange(n_blocks, device=self.device).repeat_interleave(size)
        text = torch.arange(length, device=self.device)
        sees_context = text < anchors.repeat_interleave(size, 1)[..., None]
        sees_block = (owner[:, None] == owner[None]).expand(batch, -1, -1)
        sees = torch.cat([sees_context, sees_block], dim=-1)
        keys_at = torch.cat([text.expand(batch, -1), positions], dim=-1)
        masks = {s: (sees & s.visible(positions, keys_at) if s.masks else sees)[:, None, None] for s in self.sights}
        x = blocks.flatten(1, 2).to(self.fc.weight.dtype)
        for layer, sight, context_kv in zip(self.layers, self.sights, context, strict=True):
            normed = layer.input_layernorm(x)
            block_kv = layer.self_attn.keys_values(normed, rope)
            keys, values = (torch.cat(pair, dim=2) for pair in zip(context_kv, block_kv, strict=True))
            x = x + layer.self_attn(normed, rope, keys, values, masks[sight])
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.finish(x).view(batch, n_blocks, size, hidden)


def block_embeddings(target: Target, drafter: DFlashDraftModel, anchors: Tensor) -> Tensor:
    """Embeddings `[..., block, H]` of the block `[anchor, mask, mask, ...]` of each anchor token in `anchors [...]`."""
    ids = torch.full((*anchors.shape, drafter.block_size), drafter.mask_id, device=anchors.device)
    ids[..., 0] = anchors
    return embed_for(target, drafter, ids)


def embed_for(target: Target, drafter: DFlashDraftModel, ids: Tensor) -> Tensor:
    """Embeddings `[..., H]` of `ids [...]` as the drafter takes them: the target's own, scaled where the target scales.

    A drafter that states another `input_embedding_scale` gets the bare rows of the table times that.
    """
    table = target.embed.weight  # not where the drafter is, if a device map says so
    if drafter.embedding_scale is None or math.isclose(drafter.embedding_scale, embedding_scale(target), rel_tol=1e-3):
        return target.embed(ids.to(table.device)).to(ids.device)
    return F.embedding(ids.to(table.device), table).to(ids.device) * drafter.embedding_scale


def embedding_scale(target: Target) -> float:
    """What the target multiplies the rows of its embedding by: 1, or a Gemma's square root of the width."""
    return 1.0 if type(target.embed) is nn.Embedding else float(target.embed.scalar_embed_scale)
