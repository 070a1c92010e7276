"""atlas data: fetch a corpus and keep it."""

from typing import Annotated

import typer

CORPORA = ("enwik8",)


def run(corpus: Annotated[str, typer.Argument(help="enwik8")]) -> None:
    """Fetch a corpus from the first source that answers, check it, and print its folder.

    It is kept in $ATLAS_HOME, by default in the user's cache folder. Example: atlas data enwik8
    """
    from atlas_memory.cli.train import say
    from atlas_memory.data.enwik8 import enwik8
    from atlas_memory.names import suggest

    if corpus not in CORPORA:
        raise ValueError(f"unknown corpus {corpus!r}; {suggest(corpus, list(CORPORA))}")
    print(enwik8(say))
