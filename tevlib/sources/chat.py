"""Conversations to token ids: the chat template's own ids, never the rendered text encoded a second time.

Encoding the rendered template with special tokens puts a second BOS in front of templates that write one themselves.
"""

from collections.abc import Sequence

import jinja2


def chat_ids(tokenizer, messages: str | Sequence[dict[str, str]], enable_thinking: bool = False) -> list[int]:
    """Token ids of a conversation up to the point where the assistant's next turn begins, with one BOS at most.

    messages: a list of {"role": ..., "content": ...} that ends with a user turn, or a plain string, which is encoded as
        it is, without a template. A tokenizer that has no chat template gets the contents joined by blank lines.
    enable_thinking: handed to the template; templates that do not know it ignore it.

    Raises `ValueError` for an empty or blank prompt, a malformed message, roles that the template rejects (a system
    turn, two user turns in a row), and a prompt of no tokens.
    """
    if isinstance(messages, str):
        return _raw_ids(tokenizer, messages)
    _check(messages)
    if tokenizer.chat_template is None:
        return _raw_ids(tokenizer, "\n\n".join(message["content"] for message in messages))
    try:
        ids = tokenizer.apply_chat_template(
            list(messages),
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            enable_thinking=enable_thinking,
        )
    except jinja2.TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(
            f"the chat template of {_name(tokenizer)} rejects a conversation with the roles [{roles}]: {error}; "
            "use user and assistant turns in alternation and write instructions into the first user turn"
        ) from error
    return _not_empty(ids, tokenizer)


def _raw_ids(tokenizer, text: str) -> list[int]:
    if not text.strip():
        raise ValueError(f"an empty prompt cannot be continued, got {text!r}")
    ids = tokenizer(text)["input_ids"]
    bos = tokenizer.bos_token_id
    doubled = bos is not None and ids[:2] == [bos, bos]  # the text itself begins with the BOS token's name
    return _not_empty(ids[1:] if doubled else ids, tokenizer)


def _check(messages: Sequence[dict[str, str]]) -> None:
    if not messages:
        raise ValueError("a conversation needs at least one user message, got none")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError(f'message {index} must be {{"role": str, "content": str}}, got {message!r}')
        if message["role"] != "assistant" and not message["content"].strip():
            raise ValueError(f"message {index} ({message['role']}) is empty: {message['content']!r}")
    if messages[-1]["role"] != "user":
        raise ValueError(f"a conversation must end with a user message, got {messages[-1]['role']!r} at its end")


def _not_empty(ids: Sequence[int], tokenizer) -> list[int]:
    if not ids:
        raise ValueError(f"the prompt has no tokens under {_name(tokenizer)}")
    return list(ids)


def _name(tokenizer) -> str:
    return tokenizer.name_or_path or type(tokenizer).__name__
