"""Tokenizers: bytes, a byte-level BPE of our own, or any of Hugging Face."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from atlas_memory.data.documents import Document
from atlas_memory.names import reason

END = "<|endoftext|>"
PAD = "<|pad|>"  # what makes rows of a batch equally long; nothing is ever predicted there
PACKED = {"enwik8-2048": Path(__file__).parent / "enwik8-2048.json"}  # by what they were made of
UNUSED = 255  # a byte that no UTF-8 text has; as a token it is the padding


@dataclass(frozen=True)
class Tokenizer:
    """A Hugging Face tokenizer and what the data has to know about it."""

    name: str
    fast: Any  # transformers.PreTrainedTokenizerBase, which has no types

    @property
    def is_bytes(self) -> bool:
        return self.name == "bytes"

    @property
    def vocab_size(self) -> int:
        return len(self.fast)

    @property
    def end(self) -> int | None:
        """The id that closes a document."""
        return self.fast.eos_token_id

    def encode(self, document: Document) -> Iterator[np.ndarray[Any, Any]]:
        """Ids of a document, piece by piece, closed by `end` where there is one."""
        for piece in document:
            if self.is_bytes:
                yield np.frombuffer(piece, dtype=np.uint8)
            else:
                text = piece.decode("utf-8", errors="replace")
                yield np.array(self.fast.encode(text, add_special_tokens=False), dtype=np.uint32)
        if self.end is not None:
            yield np.array([self.end], dtype=np.uint32)

    def fingerprint(self) -> str:
        if self.is_bytes:
            return "bytes"
        backend = getattr(self.fast, "backend_tokenizer", None)
        text = backend.to_str() if backend is not None else repr(sorted(self.fast.get_vocab()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def require_tokenizer(name: str) -> None:
    """Refuse what can only be the path of a file that is missing."""
    path = Path(name).expanduser()
    named = path.suffix == ".json" or (path.is_absolute() and not path.is_dir())
    if named and not path.is_file():
        raise ValueError(f"tokenizer {name!r} is neither bytes nor a file that exists")


def load_tokenizer(name: str) -> Tokenizer:
    """`bytes`, one of PACKED, a `tokenizer.json`, or what transformers can load."""
    require_tokenizer(name)
    if name == "bytes":
        return Tokenizer(name, _wrapped(_byte_tokenizer()))
    path = PACKED.get(name, Path(name).expanduser())
    if path.is_file():
        return Tokenizer(name, _from_file(path))
    from transformers import AutoTokenizer

    try:
        return Tokenizer(name, AutoTokenizer.from_pretrained(name))
    except Exception as error:
        # transformers raises OSError, ValueError or what a broken file makes of it
        raise ValueError(
            f"tokenizer {name!r} is neither {', '.join(['bytes', *PACKED])}, a tokenizer.json, a "
            f"folder nor a name that Hugging Face knows: {reason(error)}"
        ) from error


def train_tokenizer(documents: Iterable[Document], vocab_size: int) -> Tokenizer:
    """A byte-level BPE: every text has ids, and its ids give the text back."""
    from tokenizers import Tokenizer as Backend, decoders, models, pre_tokenizers, trainers

    if vocab_size < 258:
        raise ValueError(f"vocab_size={vocab_size}: a byte-level vocabulary has at least 258 ids")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (piece.decode("utf-8", errors="replace") for d in documents for piece in d)
    backend.train_from_iterator(texts, trainer)
    return Tokenizer("trained", _wrapped(backend, end=END))


def _from_file(path: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path} is not a tokenizer.json: {error}") from error
    end = next((e for e in (END, "</s>") if backend.token_to_id(e) is not None), None)
    return _wrapped(backend, end)


def _byte_tokenizer() -> Any:
    """BPE without merges over the bytes; the id of a byte is the byte."""
    from tokenizers import Tokenizer as Backend, decoders, models, pre_tokenizers

    backend = Backend(models.BPE(vocab=byte_symbols(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


@cache
def byte_symbols() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte: itself, or the next free one from 256 on."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    stand_ins = {byte: chr(byte) for byte in own}
    stand_ins |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {stand_ins[byte]: byte for byte in range(256) if byte != UNUSED} | {PAD: UNUSED}


def _wrapped(backend: Any, end: str | None = None) -> Any:
    from transformers import PreTrainedTokenizerFast

    pad = PAD if backend.token_to_id(PAD) is not None else end
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=end,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
    )
