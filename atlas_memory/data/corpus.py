"""What `--data` names: files, a corpus we can fetch, or a data set of the hub, in two splits."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from atlas_memory.data.documents import Document, Files, by_split, find_files
from atlas_memory.data.enwik8 import enwik8
from atlas_memory.data.token_cache import Source, Tokens, cached_tokens
from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.names import reason, suggest


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


# ---- data sets of the hub ------------------------------------------------------------------------


NAME = re.compile(r"(?P<name>[\w-][\w.-]*(/[\w-][\w.-]*)?)(:(?P<config>[\w.-]+))?")
FILE_ENDINGS = (".txt", ".gz", ".json", ".jsonl", ".parquet", ".md", ".csv", ".toml")


@dataclass(frozen=True)
class HubDataset:
    """`owner/name` or `owner/name:configuration`, one split of it."""

    name: str
    split: str = "train"
    field: str = "text"

    def documents(self) -> Iterator[Document]:
        for record in self._open():
            text = record.get(self.field)
            if not isinstance(text, str):
                raise ValueError(
                    f"{self.name} has no text in {self.field!r}; "
                    f"{suggest(self.field, list(record))}"
                )
            if text:
                yield [text.encode()]

    def fingerprint(self) -> list[list[str]]:
        return [[self.name, self.split, self.field]]

    def _open(self) -> Iterator[dict[str, object]]:
        from datasets import load_dataset

        name, _, config = self.name.partition(":")
        try:
            yield from load_dataset(name, config or None, split=self.split, streaming=True)
        except ValueError:
            raise
        except Exception as error:
            # Whatever the network, the hub or a data set's files throw, the user made a name.
            raise ValueError(
                f"{self.name} is no file or folder here, and no data set of that name could be "
                f"opened: {reason(error)}"
            ) from error


def may_be_hub_name(source: str) -> bool:
    """Whether `source` could name a data set rather than a file that is missing."""
    return bool(NAME.fullmatch(source)) and not source.lower().endswith(FILE_ENDINGS)
