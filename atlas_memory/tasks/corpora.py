"""Backgrounds from files, from a corpus that can be fetched, or made up."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from atlas_memory.tasks.background import Background, Encode, without_markup

NOISE = "noise"


def backgrounds(
    corpus: str, megabytes: float, encode: Encode, others: range, say: Callable[[str], None]
) -> tuple[Background, Background]:
    """Sentences to train on and others to test on, of at most so many megabytes each.

    corpus: as `--data` of `atlas train` names it, or "noise", made of the ids `others`.
    """
    if corpus == NOISE:
        first, second = (Background.noise(others, np.random.default_rng([7, n])) for n in range(2))
        return first, second
    from atlas_memory.data.corpus import find_source

    train, test = find_source(corpus, "text", say)
    if test is None:
        raise ValueError(
            f"corpus={corpus!r} has no file whose name begins with valid; "
            "the text to test on must not be the one to train on"
        )
    most = int(megabytes * 1e6)
    first, second = (
        Background.from_texts(_texts(source.documents(), most), encode) for source in (train, test)
    )
    return first, second


def _texts(documents: Iterable[Iterable[bytes]], most: int) -> Iterator[str]:
    """Documents as text without markup, until there are `most` bytes."""
    for document in documents:
        pieces = []
        for piece in document:
            pieces.append(piece[:most])
            most -= len(pieces[-1])
            if most <= 0:
                break
        yield without_markup(b"".join(pieces).decode(errors="replace"))
        if most <= 0:
            return
