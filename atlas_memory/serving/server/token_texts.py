"""The text of a single token, which may be a part of a character."""

from __future__ import annotations

import codecs
from functools import lru_cache

from atlas_memory.data.tokenizer import Tokenizer, byte_symbols


class TokenTexts:
    """Bytes and text of every token of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers import decoders

        self._fast = tokenizer.fast
        backend = getattr(self._fast, "backend_tokenizer", None)
        self._by_byte = backend is not None and isinstance(backend.decoder, decoders.ByteLevel)
        self._special = frozenset(self._fast.all_special_ids)
        self.text = lru_cache(maxsize=100_000)(self._text)

    def bytes(self, token: int) -> bytes:
        """A byte-level token is its bytes; of others their text."""
        if self._by_byte and token not in self._special:
            symbols = self._fast.convert_ids_to_tokens(token) or ""
            known = byte_symbols()
            if all(symbol in known for symbol in symbols):
                return bytes(known[symbol] for symbol in symbols)
        text: str = self._fast.decode([token])
        return text.encode()

    def _text(self, token: int) -> str:
        """As OpenAI writes it: no two parts of a character look the same."""
        data = self.bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Offsets:
    """Where in the text each token begins, in characters."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts, self._characters = texts, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: int) -> int:
        begin = self._characters
        self._characters += len(self._decoder.decode(self._texts.bytes(token)))
        return begin
