"""The target model: prefill, one pass over a whole tree, hidden-state taps, embedding and head.

The modules are transformers' own; the cache, the masks and the positions are ours. What differs between model
families is read from the configuration, never from the class name.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from tevlib.decoding.attention import NAME, additive_mask
from tevlib.decoding.cache import KVCache, Layout
from tevlib.decoding.layers import SLIDING, layer_devices, layer_keys, layer_kinds, refuse_inexact
from tevlib.trees.draft_tree import DraftTree

PREFILL_CHUNK = 512  # tokens a pass: bounds the [n, m] attention scores


@dataclass(frozen=True)
class TargetInfo:
    """What was loaded: where from, which revision or sha256, dtype, number of parameters, how products are done."""

    source: str
    revision: str
    dtype: str
    parameters: int
    device: str
    products: str = "plain"  # of weights, as measured when it was loaded

    def __str__(self) -> str:
        return (
            f"target {self.source} @ {self.revision}: {self.parameters / 1e6:.1f}M parameters, "
            f"{self.dtype} on {self.device}, products {self.products}"
        )


class Target:
    """A frozen causal language model that scores draft trees.

    `taps` are the 0-based decoder layers whose outputs a drafter reads (`hidden_states[i + 1]` in transformers'
    numbering); features are their concatenation, `[n, len(taps) * hidden]`.
    """

    def __init__(self, model, tokenizer, info: TargetInfo):
        self.model, self.tokenizer, self.info = model.eval().requires_grad_(False), tokenizer, info
        self.config = config = model.config.get_text_config()
        refuse_inexact(config, type(model), model.generation_config)
        self.hidden_size = config.hidden_size
        self.layers = config.num_hidden_layers
        self.embed = model.get_input_embeddings()
        self.head = model.get_output_embeddings()
        self.decoder = model.get_decoder()
        self.vocab_size = self.head.weight.shape[0]
        self.softcap = config.to_dict().get("final_logit_softcapping")
        self.context_limit = config.max_position_embeddings
        self.kinds = layer_kinds(config)
        self.layout = Layout(layer_keys(config, layer_devices(model)))
        self.window = min(self.layout.windows, default=None)
        self.kv_heads, self.head_dim = self.layout.layers[0][:2]
        # Our attention stacks query heads and takes masks of the last keys alone; the others do neither.
        self.own_attention = model.config._attn_implementation == NAME
        self.repeats = {
            kind: config.num_attention_heads // kept.heads if self.own_attention else 1
            for kind, kept in zip(self.kinds, self.layout.layers, strict=True)
            if kept is not None
        }
        self.cost_curves = WeakKeyDictionary()  # of rounds with a drafter, measured for automatic budgets

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end a response: the tokenizer's and the generation config's together."""
        ids: set[int] = set()
        for eos in (self.tokenizer.eos_token_id if self.tokenizer else None, self.model.generation_config.eos_token_id):
            ids.update(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
        return frozenset(ids)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty key/value store for `capacity` tokens, pending tree nodes included."""
        return KVCache.of(self.layout, capacity, self.dtype)

    def logits(self, hidden: Tensor, head: torch.nn.Module | None = None) -> Tensor:
        """Next-token logits `[..., V]` in float32 from final hidden states `[..., H]`, soft-capped if the model is.

        `head`: some rows of the target's own, for their tokens alone.
        """
        logits = (head or self.head)(hidden).float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def forward(
        self, ids: Tensor, positions: Tensor, visible: Tensor | None, cache, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Final hidden states `[B, n, H]` and features `[B, n, len(taps) * H]` of `ids [B, n]` at `positions [B, n]`.

        `visible` is boolean `[B, n, m]` over the last `m` keys that the cache returns, or `None`; all see the keys
        before those (with another attention than ours, `m` must be all). Windows of sliding layers are not its matter.
        The new tokens are left pending in the cache.
        """
        masks = self._masks(visible, positions, cache)
        with torch.inference_mode(), tapped(self.decoder, taps) as outputs:
            hidden = self.decoder(
                input_ids=ids, position_ids=positions, attention_mask=masks, cache=cache, use_cache=cache is not None
            ).last_hidden_state
        hidden = hidden.to(self.device)
        return hidden, torch.cat([outputs[i].to(self.device) for i in taps], dim=-1) if taps else hidden[..., :0]

    def _masks(self, visible: Tensor | None, positions: Tensor, cache) -> Tensor | dict[str, Tensor]:
        """Additive masks for the decoder: one, or one per kind of layer where it has two.

        Always four-dimensional: transformers then takes it as it is and asks nothing of the cache.
        """
        masks = {}
        for kind in self.repeats:
            shown = visible
            if kind == SLIDING and visible is not None:
                keys = positions if cache is None else cache.key_positions(positions, self.window)
                if keys.shape[1] > self.window:  # else nobody is that far from the first
                    shown = _fit(visible, keys.shape[1]) & (keys[:, None] > positions[..., None] - self.window)
            if shown is None:
                masks[kind] = positions.new_zeros(1, 1, 1, 1, dtype=self.dtype)
            else:
                masks[kind] = additive_mask(shown, self.repeats[kind], self.dtype)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def prefill(self, cache: KVCache, ids: Tensor, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Logits `[V]` after the last of `ids [n]` and the features `[n, len(taps) * H]` of all; commits the tokens."""
        features = []
        hidden = None
        for chunk in ids.split(PREFILL_CHUNK):
            n = len(chunk)
            positions = torch.arange(cache.length, cache.length + n, device=ids.device)
            causal = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril() if n > 1 else None
            hidden, tapped = self.forward(chunk[None], positions[None], self._behind(cache, causal), cache, taps)
            cache.commit(list(range(n)))
            features.append(tapped[0])
        return self.logits(hidden[0, -1]), torch.cat(features)

    def pass_tree(self, cache: KVCache, tree: DraftTree, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Final hidden states `[N, H]` of every node and the nodes' features, in one pass; `logits` makes rows of them.

        Node `v` sits at position `length + depth(v)` and sees the committed tokens and its ancestors only. The nodes
        are left pending: `cache.commit(path)` keeps an accepted one.
        """
        visible = self._behind(cache, tree.ancestors if len(tree) > 1 else None)
        positions = cache.length + tree.depths
        hidden, features = self.forward(tree.tokens[None], positions[None], visible, cache, taps)
        return hidden[0], features[0]

    def score_tree(self, cache: KVCache, tree: DraftTree, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Logits `[N, V]` after every node's prefix (Eq. 1) and the nodes' features: `pass_tree` and the whole head."""
        hidden, features = self.pass_tree(cache, tree, taps)
        return self.logits(hidden), features

    def _behind(self, cache: KVCache, square: Tensor | None) -> Tensor | None:
        """What new tokens see, `[1, n, m]`, from what they see of each other, `[n, n]`; all see what is committed."""
        if square is None:
            return None
        return (square if self.own_attention else F.pad(square, (cache.length, 0), value=True))[None]

    def fingerprint(self) -> dict:
        """What a drafter depends on: shapes, a digest of the tokenizer and one of the weights (as bfloat16)."""
        rows = torch.linspace(0, self.vocab_size - 1, 64).long()
        sample = torch.cat([self.embed.weight[rows].flatten(), self.decoder.norm.weight.flatten()])
        pieces = [str(self.tokenizer.convert_ids_to_tokens(int(i))) for i in rows if int(i) < len(self.tokenizer)]
        special = [len(self.tokenizer), self.tokenizer.bos_token_id, self.tokenizer.eos_token_id]
        return {
            "hidden_size": self.hidden_size,
            "num_layers": self.layers,
            "vocab_size": self.vocab_size,
            "tokenizer": _digest(repr((special, pieces)).encode()),
            "weights": _digest(sample.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes()),
        }


@contextlib.contextmanager
def tapped(decoder, taps: tuple[int, ...]) -> Iterator[dict[int, Tensor]]:
    """The outputs `[B, n, H]` of the layers `taps`, as passes in the block make them; no other layer's is kept."""
    outputs: dict[int, Tensor] = {}

    def keep(layer: int):
        return lambda _module, _inputs, out: outputs.__setitem__(layer, out[0] if isinstance(out, tuple) else out)

    hooks = [decoder.layers[layer].register_forward_hook(keep(layer)) for layer in taps]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _fit(visible: Tensor, m: int) -> Tensor:
    """`visible` over the last `m` keys: those that it does not speak of are seen by all."""
    return F.pad(visible, (m - visible.shape[-1], 0), value=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
