"""Conversations to token ids."""


def chat_ids(tokenizer, messages, enable_thinking: bool = False) -> list[int]:
    """Token ids of a conversation as the chat template writes it."""
    return list(
        tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False, enable_thinking=enable_thinking
        )
    )
