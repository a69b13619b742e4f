"""Chat templates to ids: one BOS, thinking off, rejected roles, empty prompts."""

import warnings

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tevlib.sources.chat import chat_ids

LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}<|end|>\n\n"
    "{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|start|>{{ 'model' if m['role'] == 'assistant' else 'user' }}\n{{ m['content'] | trim }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)
QWEN = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|eot|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SPECIAL = ["<bos>", "<|start|>", "<|end|>", "<|eot|>", "<mask>"]


def make_tokenizer(template, bos=True):
    """A byte-level BPE tokenizer that, like Llama's and Gemma's, puts a BOS in front of plain text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([], trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet))
    if bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", raw.token_to_id("<bos>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|eot|>", **({"bos_token": "<bos>"} if bos else {})
    )
    tokenizer.chat_template = template
    return tokenizer


def user(*contents):
    """Alternating user and assistant messages, a user's first."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


@pytest.mark.parametrize("template", [LLAMA, GEMMA])
@pytest.mark.parametrize("messages", [user("test"), user("test", "", "more")])
def test_one_bos_where_the_template_writes_it(template, messages):
    """The template's BOS is the only one: no second one from re-encoding with special tokens (sglang#888)."""
    tokenizer = make_tokenizer(template)
    ids = chat_ids(tokenizer, messages)
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids) == rendered
    assert tokenizer(rendered)["input_ids"].count(tokenizer.bos_token_id) == 2  # what must not be done


@pytest.mark.parametrize("text", ["test", "<bos>test"])
def test_one_bos_for_raw_text(text):
    """A plain string keeps the tokenizer's own BOS, once, even if the text spells it out."""
    tokenizer = make_tokenizer(LLAMA)
    ids = chat_ids(tokenizer, text)
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "test"


def test_no_bos_where_the_tokenizer_has_none():
    """A tokenizer without BOS gets none, from a template or from text."""
    tokenizer = make_tokenizer(QWEN, bos=False)
    assert tokenizer.decode(chat_ids(tokenizer, "test")) == "test"
    assert chat_ids(tokenizer, user("test"))[0] == tokenizer.convert_tokens_to_ids("<|start|>")


def test_thinking_is_switched_off_and_on():
    """enable_thinking=False, the default, ends the prompt in an empty think block; True does not."""
    tokenizer = make_tokenizer(QWEN, bos=False)
    assert tokenizer.decode(chat_ids(tokenizer, user("test"))).endswith("assistant\n<think>\n\n</think>\n\n")
    assert tokenizer.decode(chat_ids(tokenizer, user("test"), enable_thinking=True)).endswith("assistant\n")


def test_second_turn_is_not_taken_for_a_continuation():
    """History is rendered without the think block, so turn 1's ids are no prefix of turn 2's (Qwen3#1826)."""
    tokenizer = make_tokenizer(QWEN, bos=False)
    first, second = chat_ids(tokenizer, user("a")), chat_ids(tokenizer, user("a", "b", "c"))
    assert second[: len(first)] != first


@pytest.mark.parametrize("template", [LLAMA, GEMMA])
def test_thinking_is_harmless_where_unknown(template):
    """A template without the variable gives the same ids for both values, and nothing is warned about."""
    tokenizer = make_tokenizer(template)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = chat_ids(tokenizer, user("test"), enable_thinking=True)
    plain = tokenizer.apply_chat_template(user("test"), add_generation_prompt=True, return_dict=False)
    assert ids == chat_ids(tokenizer, user("test")) == plain


@pytest.mark.parametrize(
    "roles", [("system", "user"), ("user", "user"), ("assistant", "user"), ("user", "assistant", "assistant", "user")]
)
def test_rejected_roles_are_one_clear_error(roles):
    """A template that refuses a conversation is reported with the roles and the way out (mistral.rs#506)."""
    messages = [{"role": role, "content": "test"} for role in roles]
    with pytest.raises(ValueError, match="rejects a conversation with the roles") as error:
        chat_ids(make_tokenizer(GEMMA), messages)
    assert ", ".join(roles) in str(error.value) and "first user turn" in str(error.value)
    assert chat_ids(make_tokenizer(LLAMA), messages)  # where the template takes them they pass


@pytest.mark.parametrize("text", ["", "   ", "\n\t "])
def test_empty_prompts_are_refused(text):
    """Nothing to continue is an error where it enters, with and without BOS, raw and as a message."""
    for tokenizer in (make_tokenizer(LLAMA), make_tokenizer(QWEN, bos=False)):
        with pytest.raises(ValueError, match="empty"):
            chat_ids(tokenizer, text)
        with pytest.raises(ValueError, match="is empty"):
            chat_ids(tokenizer, user("a", "b", text))


@pytest.mark.parametrize("text", ["<|eot|><|start|>", "<mask>", "a"])
def test_odd_prompts_have_a_defined_result(text):
    """Only special tokens, the mask token's name, a single token: ids, each of the vocabulary."""
    tokenizer = make_tokenizer(None, bos=False)
    ids = chat_ids(tokenizer, text)
    assert ids == chat_ids(tokenizer, user(text)) and tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one"),
        (["test"], "message 0 must be"),
        ([{"role": "user"}], "message 0 must be"),
        ([{"role": "user", "content": ["a"]}], "message 0 must be"),
        (user("a", "b"), "must end with a user message"),
    ],
)
def test_malformed_conversations_are_refused(messages, message):
    """Wrong types, a missing key, a conversation without a last user turn: named before any model call."""
    with pytest.raises(ValueError, match=message):
        chat_ids(make_tokenizer(LLAMA), messages)


def test_base_model_without_template_gets_plain_text():
    """Without a chat template the contents are joined by blank lines, with the tokenizer's BOS."""
    tokenizer = make_tokenizer(None)
    assert tokenizer.decode(chat_ids(tokenizer, user("a", "b", "c"))) == "<bos>a\n\nb\n\nc"
