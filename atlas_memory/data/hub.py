"""Documents from a data set of the Hugging Face hub, read as a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from atlas_memory.data.documents import Document
from atlas_memory.names import reason, suggest

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
