"""Tiny random targets of all families with a real tokenizer, and drafters whose aim a test can set."""

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tevlib.decoding.attention import NAME
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target, TargetInfo
from tevlib.training.initialise import drafter_config

VOCAB = 128
SHAPE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=3,
    tie_word_embeddings=False,
)  # fmt: skip
WINDOW = 8
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500_000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)  # fmt: skip
SLIDES = dict(
    sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2, final_logit_softcapping=5.0
)
GEMMA4 = SLIDES | dict(eos_token_id=[1, 106], global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True)
CONFIGS = {
    "llama": lambda **kw: LlamaConfig(**SHAPE | kw),
    "llama3": lambda **kw: LlamaConfig(**SHAPE | dict(rope_parameters=LLAMA3, eos_token_id=[1, 6, 7]) | kw),
    "mistral": lambda **kw: MistralConfig(**SHAPE | dict(sliding_window=None) | kw),
    "qwen2": lambda **kw: Qwen2Config(**SHAPE | kw),
    "qwen3": lambda **kw: Qwen3Config(**SHAPE | kw),
    "qwen3_moe": lambda **kw: Qwen3MoeConfig(
        **SHAPE | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1) | kw
    ),
    "gemma3": lambda **kw: Gemma3TextConfig(**SHAPE | SLIDES | dict(query_pre_attn_scalar=16) | kw),
    "gemma4": lambda **kw: Gemma4TextConfig(  # small ones: layers that share keys, inputs for every layer
        **SHAPE | GEMMA4 | dict(
            num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB
        ) | kw
    ),
    "gemma4_unified": lambda **kw: Gemma4UnifiedConfig(  # the 12B: a text stack inside a model that also takes images
        text_config=SHAPE | GEMMA4 | kw, tie_word_embeddings=False,
        vision_config=dict(mm_embed_dim=32, mm_posemb_size=8, patch_size=4, pooling_kernel_size=1, output_proj_dims=32),
        audio_config=None, image_token_id=1000, video_token_id=1001, audio_token_id=1002,
    ),
}  # fmt: skip
PLAIN = ("llama", "qwen3", "qwen3_moe")  # full attention everywhere: what most tests run on


def make_tokenizer(size: int = VOCAB) -> PreTrainedTokenizerFast:
    """A word-level tokenizer of `size` tokens: `t4`, `t5`, ... after four special ones."""
    names = ["<s>", "</s>", "<unk>", "<pad>", *(f"t{i}" for i in range(4, size))]
    inner = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def make_target(family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **overrides) -> Target:
    """A random target; weights large enough that its argmax moves with the context."""
    torch.manual_seed(seed)
    config = CONFIGS[family](**overrides)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" not in name:
                value.normal_(0, 0.25)
    config = config.get_text_config()
    model.generation_config.eos_token_id = config.eos_token_id
    info = TargetInfo(f"tiny {family}", f"seed {seed}", str(dtype), sum(p.numel() for p in model.parameters()), "cpu")
    return Target(model.to(dtype), make_tokenizer(config.vocab_size), info)


def make_drafter(target: Target, block_size: int = 8, layers: int = 2, taps=(0, 2), seed: int = 1, mask_id: int = 5):
    """A random drafter that fits `target`."""
    torch.manual_seed(seed)
    drafter = DFlashDraftModel(drafter_config(target, layers, block_size, taps, mask_id)).to(target.dtype)
    with torch.no_grad():
        for name, value in drafter.named_parameters():
            if "norm" not in name:
                value.normal_(0, 0.25)
    return drafter.eval()


class AimedDrafter(DFlashDraftModel):
    """A real drafter whose rows are replaced: each points at the token that `text` has there.

    `decoy(position)` is how far a row points at another token too: 0 makes an oracle, above 1 the true token sits on a
    side branch. `text` is prompt and continuation, so the position of a row is enough to know what comes next.
    """

    def aim(self, target: Target, text: list[int], decoy=lambda position: 0.0) -> "AimedDrafter":
        self.target, self.text, self.decoy = target, text, decoy
        return self

    def draft(self, cache, block, features=None):
        super().draft(cache, block, features)
        return self._aimed(cache.length, len(block)).to(block.dtype)

    def draft_blocks(self, context, blocks, anchors):
        states = super().draft_blocks(context, blocks, anchors)
        for b, a in torch.cartesian_prod(*(torch.arange(n) for n in anchors.shape)).tolist():
            states[b, a, 1:] = self._aimed(int(anchors[b, a]), blocks.shape[2]).to(states.dtype)
        return states

    def _aimed(self, anchor: int, size: int) -> torch.Tensor:
        head = torch.nn.functional.normalize(self.target.head.weight.float(), dim=-1)
        rows = [torch.zeros(0, head.shape[1])]
        for position in range(anchor + 1, anchor + size):
            true = self.text[position] if position < len(self.text) else 8
            rows.append(6 * (head[true] + self.decoy(position) * head[(true + 1) % VOCAB])[None])
        return torch.cat(rows)
