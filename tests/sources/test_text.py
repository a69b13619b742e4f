"""Streaming decode and token labels, on byte-level and sentencepiece-like tokenizers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tevlib.sources import assets
from tevlib.sources.text import TextStream, token_label

TEXT = "ďábel 👩‍👩‍👧 世界\n  def f(x):\treturn 'é' "
CORPUS = ["the cat sat on the mat", "ďábel ďas", "世界", "def f(x):\n    return x"]


def byte_level():
    """Qwen-like: every character is one or more bytes of a GPT-2 alphabet, a few merges."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|eot|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    raw.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|eot|>")


def sentencepiece_like():
    """Llama-2-like: pieces with U+2581 for spaces, bytes <0x00> to <0xFF> for what has no piece."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "▁the", "the", "▁a", *"abcdeflnrtuxáé"]
    raw = Tokenizer(
        models.BPE({piece: index for index, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"byte_level": byte_level(), "sentencepiece": sentencepiece_like()}


def whole(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(tokenizer, chunks):
    stream = TextStream(tokenizer)
    return [stream.push(chunk) for chunk in chunks] + [stream.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streaming_loses_and_repeats_nothing(name):
    """Emoji, Czech and CJK, token by token: the pieces joined are the text, no piece has a broken character."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    pieces = streamed(tokenizer, [[token] for token in ids])
    assert "".join(pieces) == whole(tokenizer, ids) == TEXT
    assert "\ufffd" not in "".join(pieces)
    assert sum(piece != "" for piece in pieces) > 10  # it streams: not all of it comes at the end


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_streaming_equals_decoding_for_any_tokens(name, data):
    """Any ids (broken bytes, special tokens, padding), in any chunks, give the decoding of the whole sequence."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 2), max_size=24))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    chunks = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert "".join(streamed(tokenizer, chunks)) == whole(tokenizer, ids)


def test_incomplete_character_is_held_back():
    """Half a character gives no text until its other half arrives; `finish` shows what never became one."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer("💡", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    assert [stream.push([token]) for token in ids] == [""] * (len(ids) - 1) + ["💡"]
    assert stream.push(ids[:1]) == "" and stream.finish() == "\ufffd" and stream.finish() == ""


def test_stream_can_be_used_again_after_finish():
    """Nothing of one response leaks into the next."""
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer("the a", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    for _ in range(2):
        assert stream.push(ids) + stream.finish() == "the a"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_token_has_a_visible_label(name):
    """No id raises, inside or outside the vocabulary; labels are printable and never empty."""
    tokenizer = TOKENIZERS[name]
    for token in [*range(len(tokenizer)), -1, len(tokenizer), 10**12]:
        label = token_label(tokenizer, token)
        assert label and label.isprintable() and "\ufffd" not in label, (token, label)
    assert token_label(tokenizer, len(tokenizer)) == f"<{len(tokenizer)}>"


def test_labels_of_byte_level_tokens():
    """Spaces, newlines, parts of a character and whole ones are told apart."""
    tokenizer = TOKENIZERS["byte_level"]

    def labels(text):
        return [token_label(tokenizer, token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]

    assert labels(" the")[0].startswith("␣")
    assert labels("\n") == ["\\n"] and labels("\t") == ["\\t"]
    assert labels("💡") == ["\\xf0", "\\x9f", "\\x92", "\\xa1"]
    assert labels("\u202e") == ["\\xe2", "\\x80", "\\xae"]
    assert token_label(tokenizer, 0) == "<|eot|>"


def test_labels_of_sentencepiece_tokens():
    """The leading space that a single-token decode drops is shown; byte pieces are escapes; letters are themselves."""
    tokenizer = TOKENIZERS["sentencepiece"]
    label = {piece: token_label(tokenizer, tokenizer.convert_tokens_to_ids(piece)) for piece in tokenizer.get_vocab()}
    assert label["▁the"] == "␣the" and label["the"] == "the" and label["é"] == "é"
    assert label["▁"] == "␣" and label["▁▁"] == "␣␣"
    assert label["<0xE4>"] == "\\xe4" and label["<0x0A>"] == "\\n" and label["<0x41>"] == "A"
    assert label["</s>"] == "</s>"


@pytest.mark.slow
def test_the_real_target_tokenizer():
    """SmolLM2's own tokenizer, read from the GGUF file: exact streaming and a label for every one of 49,152 ids."""
    try:
        path = assets.gguf_path()
    except assets.AssetMissing as error:
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert "".join(streamed(tokenizer, [[token] for token in ids])) == TEXT
    labels = [token_label(tokenizer, token) for token in range(len(tokenizer))]
    assert len(labels) == 49152 and all(label and label.isprintable() for label in labels)
