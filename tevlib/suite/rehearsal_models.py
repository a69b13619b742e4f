"""Tiny random models under the names of large ones, in a hub cache of their own: what a rehearsal loads.

Real configuration classes, real file layouts, a tokenizer with the family's special tokens and a chat template of its
form. With HF_HUB_CACHE set to the folder and HF_HUB_OFFLINE=1, `org/name` is found there as after a download.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tevlib

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, WINDOW = 64, 4, 2, 16, 4, 16
BLOCK = 16  # as the released drafters
TAPS = (0, 2)
STOP = 0.12  # about the chance of a stop token, beside what the common ones take
TOKENS = 600  # of a tokenizer that is made here, from the package's own text
SPARE_ROWS = 24  # of the embedding, without a token: some drafters' mask is one

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
HEADERS = (
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023<|eot_id|>"
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """How models of a family differ: configuration class and values, special tokens (first: padding), which of them
    begin and end a text, which end an answer, the chat template, the drafters' mask (None: a row without a token),
    whether their layers slide, and how far the embedding's random rows are apart.
    """

    config: Callable[..., object]
    specials: tuple[str, ...]
    bos: str | None
    eos: str
    stops: tuple[str, ...]
    template: str
    mask: str | None = None
    sliding: bool = False
    embedding: float = 0.15


def _qwen3(**shape):
    from transformers import Qwen3Config

    return Qwen3Config(**shape, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


def _qwen3_moe(**shape):
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        **shape, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1,
        norm_topk_prob=True, rope_parameters={"rope_type": "default", "rope_theta": 1e7},
    )  # fmt: skip


def _llama3(**shape):
    from transformers import LlamaConfig

    scaling = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    return LlamaConfig(**shape, rope_parameters=scaling)


def _gemma4(**shape):
    """Text beside vision and audio, as the hub has it; here without weights for those."""
    from transformers import Gemma4UnifiedConfig

    text = shape | {
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2), "sliding_window": WINDOW,
        "global_head_dim": 2 * HEAD_DIM, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    return Gemma4UnifiedConfig(text_config=text, tie_word_embeddings=shape["tie_word_embeddings"])


IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
FAMILIES = {
    "qwen3": Family(_qwen3, IM, None, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), CHATML),
    "qwen3_moe": Family(_qwen3_moe, IM, None, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), CHATML),
    "llama3": Family(
        _llama3,
        ("<|finetune_right_pad_id|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>",
         "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_0|>"),
        "<|begin_of_text|>", "<|eot_id|>", ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), HEADERS,
        "<|reserved_special_token_0|>",
    ),
    "gemma4": Family(
        _gemma4, ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"),
        "<bos>", "<eos>", ("<eos>", "<end_of_turn>"), TURNS, "<mask>", True, 0.25,
    ),
}  # fmt: skip
MODELS = {  # hub id -> family, and whether its head is its embedding
    "Qwen/Qwen3-4B": ("qwen3", True),
    "Qwen/Qwen3-8B": ("qwen3", False),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama3", False),
    "google/gemma-4-12b-it": ("gemma4", True),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("qwen3_moe", False),
}


def write_models(cache: Path, drafters: Mapping[str, str], tokenizers: Path | None = None) -> list[str]:
    """The names of what was written to the hub cache `cache`: the targets of `drafters` (drafter -> target) and those.

    tokenizers: a folder that may hold real ones, `tokenizers/Qwen3-4B` for `Qwen/Qwen3-4B`; targets that have none
    there get a small one. Raises `ValueError` for a target whose architecture is not known.
    """
    check_known(drafters.values())
    written = {name: write_target(cache, name, tokenizers) for name in dict.fromkeys(drafters.values())}
    for place, (name, target) in enumerate(drafters.items()):
        write_drafter(cache, name, written[target], FAMILIES[MODELS[target][0]], sharded=place % 2 == 1)
    return [*written, *drafters]


def check_known(targets: Iterable[str]) -> None:
    """Raises `ValueError` for a target whose architecture is not known."""
    for name in targets:
        if name not in MODELS:
            raise ValueError(f"no architecture is known for {name!r} to rehearse with; known: {', '.join(MODELS)}")


def write_target(cache: Path, name: str, tokenizers: Path | None = None) -> Path:
    """The snapshot folder of a random target of the architecture of `name`: configurations, weights, tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    check_known([name])
    family, tied = FAMILIES[MODELS[name][0]], MODELS[name][1]
    tokenizer = _tokenizer(family, None if tokenizers is None else tokenizers / name.split("/")[-1])
    known = tokenizer.get_vocab()
    stops = [known[token] for token in family.stops if token in known]
    if not stops:
        raise ValueError(f"the tokenizer given for {name} has none of the stop tokens {', '.join(family.stops)}")
    rows = 8 * -(-(len(tokenizer) + SPARE_ROWS) // 8)
    config = family.config(
        vocab_size=rows, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=stops, pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(_seed(name))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        _fill(model, family.embedding)
        _favour(model, stops)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=stops, pad_token_id=tokenizer.pad_token_id
    )
    folder = _snapshot(cache, name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_drafter(cache: Path, name: str, target: Path, family: Family, sharded: bool) -> Path:
    """The snapshot folder of a random drafter for the target in `target`, in the layout of the released ones.

    Those are of two kinds: one file and the values of the block at the top level, or, `sharded`, several files with an
    index and those values in `dflash_config`.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    from tevlib.decoding.drafter import DFlashDraftModel
    from tevlib.decoding.drafter_config import read_config

    source = AutoConfig.from_pretrained(target).get_text_config()
    tokenizer = AutoTokenizer.from_pretrained(target)
    block = {"block_size": BLOCK, "num_target_layers": source.num_hidden_layers}
    nested = {
        "mask_token_id": len(tokenizer) if family.mask is None else tokenizer.convert_tokens_to_ids(family.mask),
        "target_layer_ids": list(TAPS),
    }
    slides = {"sliding_window": None, "use_sliding_window": False}
    if family.sliding:
        slides = {"sliding_window": WINDOW, "use_sliding_window": True}
        nested |= {"final_logit_softcapping": 30.0, "input_embedding_scale": HIDDEN**0.5}
    raw = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "num_hidden_layers": 2, "max_window_layers": 2,
        "layer_types": ["sliding_attention" if family.sliding else "full_attention", "full_attention"],
        "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": source.vocab_size, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000, "rope_scaling": None, "max_position_embeddings": source.max_position_embeddings,
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False,
        **slides, **({} if sharded else block), "dflash_config": nested | (block if sharded else {}),
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(_seed(name))
        model = DFlashDraftModel(read_config(raw, name)).to(torch.bfloat16)
        _fill(model)
    tensors = {key: value.contiguous() for key, value in model.state_dict().items()}
    folder = _snapshot(cache, name)
    (folder / "config.json").write_text(json.dumps(raw, indent=2))
    if not sharded:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    where = {key: files[i % 2] for i, key in enumerate(sorted(tensors))}
    for file in files:
        part = {key: value for key, value in tensors.items() if where[key] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def _snapshot(cache: Path, name: str) -> Path:
    """The folder where the hub's client looks for `name`, made, with the reference that leads to it."""
    commit = hashlib.sha1(f"rehearsal of {name}".encode()).hexdigest()
    model = cache / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True, exist_ok=True)
    (model / "refs" / "main").write_text(commit)
    folder = model / "snapshots" / commit
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tokenizer(family: Family, real: Path | None):
    """The tokenizer in the folder `real` where there is one, else a small one, the family's special tokens first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if real is not None and real.is_dir():
        return AutoTokenizer.from_pretrained(real)
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    text = [path.read_text(encoding="utf-8") for path in sorted(Path(tevlib.__file__).parent.rglob("*.py"))]
    inner.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=TOKENS,
            special_tokens=list(family.specials),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=family.bos, eos_token=family.eos, pad_token=family.specials[0],
        extra_special_tokens=[name for name in family.specials[1:] if name not in (family.bos, family.eos)],
    )  # fmt: skip
    tokenizer.chat_template = family.template
    return tokenizer


def _fill(model, embedding: float = 0.15) -> None:
    """Random weights, `embedding` the standard deviation of that; norms stay as they are.

    What layers add is small and the head's rows differ: some tokens are likely, none is certain.
    """
    import torch

    sizes = {"embed": embedding, "lm_head": 0.3}
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" not in name and value.ndim > 1:
                value.normal_(0, next((size for part, size in sizes.items() if part in name), 0.05))


def _favour(model, stops: list[int]) -> None:
    """Make a vocabulary of any size talk: sixteen tokens have about half of the mass, and each step ends an answer with
    a chance of about `STOP`, by the rows of those tokens in the one coordinate that is the same for all states."""
    import torch

    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    common = torch.linspace(len(head) // 4, len(head) // 2, 16).long().tolist()
    with torch.no_grad():
        embedding[:, 0] = 1.0
        if head is not embedding:
            head[:, 0] = 0.0
        head[stops] = 0.0
        states = model.get_decoder()(input_ids=torch.randint(len(head), (1, 256)), use_cache=False).last_hidden_state
        states = states[0].float()
        others = (states @ head.float().T).logsumexp(-1)
        for tokens, share in ((stops, STOP), (common, 0.5)):
            head[tokens, 0] = ((others + math.log(share / len(tokens))) / states[:, 0]).median().to(head.dtype)


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
