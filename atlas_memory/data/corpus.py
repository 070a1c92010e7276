"""What `--data` names: files, a corpus we can fetch, or a data set of the hub, in two splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atlas_memory.data.documents import Files, by_split, find_files
from atlas_memory.data.enwik8 import enwik8
from atlas_memory.data.hub import HubDataset, may_be_hub_name
from atlas_memory.data.token_cache import Source, Tokens, cached_tokens
from atlas_memory.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens to validate on."""

    train: Tokens
    validation: Tokens


def require_source(source: str) -> None:
    """A file, folder or pattern that is there, or what may be the name of a data set."""
    if source != "enwik8" and not find_files(source) and not may_be_hub_name(source):
        raise ValueError(f"no data: there is no file, folder or pattern {source}")


def find_source(
    source: str, field: str, say: Callable[[str], None]
) -> tuple[Source, Source | None]:
    """Where the training text comes from, and the validation text if it is a split of its own."""
    require_source(source)
    if source == "enwik8":
        source = str(enwik8(say))
    if files := find_files(source):
        splits = by_split(files)
        if not splits["train"]:
            splits = {"train": files, "validation": [], "test": []}
        validation = Files(tuple(splits["validation"]), field) if splits["validation"] else None
        return Files(tuple(splits["train"]), field), validation
    return HubDataset(source, field=field), None


def load_corpus(
    sources: tuple[Source, Source | None],
    tokenizer: Tokenizer,
    *,
    most_tokens: int | None,
    validation_share: float,
) -> Corpus:
    """Both splits as tokens; without a validation split the end of the text is kept for it."""
    train, validation = sources
    tokens = cached_tokens(train, tokenizer, most_tokens)
    if validation is not None:
        return Corpus(tokens, cached_tokens(validation, tokenizer))
    total = len(tokens.ids)
    border = total - round(total * validation_share)
    return Corpus(tokens.part(0, border), tokens.part(border, total))


def require_length(tokens: Tokens, length: int, what: str) -> None:
    """A text must fill at least one window."""
    if len(tokens.ids) == 0:
        raise ValueError(f"the {what} text is empty; give text to read")
    if len(tokens.ids) < length:
        raise ValueError(
            f"the {what} text has {len(tokens.ids)} tokens and data.length is {length}; "
            "give more text or a shorter length"
        )
