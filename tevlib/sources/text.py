"""Token ids to text for people: streaming without broken characters, and a visible label for a single token."""

import re
from collections.abc import Iterable

BROKEN = "\N{REPLACEMENT CHARACTER}"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # sentencepiece's byte fallback


class TextStream:
    """Decodes a growing token sequence piece by piece; the pieces joined are the decoding of the whole sequence.

    Text is held back while it ends in an incomplete character (a byte-level token can end inside one) or in a byte
    piece such as `<0x0A>` (the next byte could still turn the whole run of bytes invalid), and released by a later
    `push`, at the latest by `finish`. Special tokens give no text.
    """

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        self._context: list[int] = []  # the last tokens already released: decoders treat the first token differently
        self._held: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """The text completed by `ids`, "" where they complete none."""
        self._held += [token for token in map(int, ids) if self._piece(token) is not None]
        text = self._new_text()
        if not text or text.endswith(BROKEN) or self._ends_in_byte_piece():
            return ""
        self._context, self._held = self._held, []
        return text

    def finish(self) -> str:
        """The text still held back; what never became a character shows as U+FFFD. The stream is empty afterwards."""
        text = self._new_text()
        self._context, self._held = [], []
        return text

    def _ends_in_byte_piece(self) -> bool:
        return BYTE_PIECE.fullmatch(self._piece(self._held[-1])) is not None

    def _piece(self, token: int) -> str | None:
        """The vocabulary's piece, None for what decoding leaves out: special tokens and ids without a piece."""
        return None if token in self._special else self._tokenizer.convert_ids_to_tokens(token)

    def _new_text(self) -> str:
        return self._decode(self._context + self._held)[len(self._decode(self._context)) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def token_label(tokenizer, token: int) -> str:
    """A visible label of one token: a space as U+2423, invisible characters escaped, bytes of a part as \\xNN.

    Never raises: an id without a piece (padded vocabularies have some) is shown as `<id>`.
    """
    piece = tokenizer.convert_ids_to_tokens(token) if 0 <= token < len(tokenizer) else None
    if piece is None:
        return f"<{token}>"
    if byte := BYTE_PIECE.fullmatch(piece):
        return _show_bytes(bytes.fromhex(byte[1]))
    text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if BROKEN in text and all(char in _BYTE_OF_CHAR for char in piece):
        return _show_bytes(bytes(_BYTE_OF_CHAR[char] for char in piece))
    if piece.replace("▁", " ") == " " + text:
        text = " " + text  # a sentencepiece decoder drops the first token's leading space
    return _show(text) or _show(piece) or f"<{token}>"


def _show(text: str) -> str:
    return "".join(_show_char(char) for char in text)


def _show_char(char: str) -> str:
    if char == " ":
        return "␣"
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def _show_bytes(data: bytes) -> str:
    """The whole characters of `data` shown, bytes that belong to none as \\xNN."""
    return "".join(
        f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else _show_char(char)
        for char in data.decode("utf-8", errors="surrogateescape")
    )


def _byte_of_char() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
