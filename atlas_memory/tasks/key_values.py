"""Documents of keys and values, as the benchmarks of in-context recall have them, made by rule.

    >>> Documents(pairs=3, keys=8, values=8, seed=2)[0]
    {'text': 'Daba: mababa. Baba: gababa. Laba: bababa.', 'key': 'baba', 'value': 'gababa'}

The question is `Baba:` behind the document. Words are syllables without a meaning, so that no
answer can be known from elsewhere.
"""

from dataclasses import dataclass

import numpy as np

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = [c + v for v in VOWELS for c in CONSONANTS]


def word(n: int, length: int) -> str:
    """Word number n of so many syllables; the words of two lengths have nothing in common."""
    syllables = []
    for _ in range(length):
        n, rest = divmod(n, len(SYLLABLES))
        syllables.append(SYLLABLES[rest])
    if n:
        raise ValueError(f"there are only {len(SYLLABLES) ** length} words of {length} syllables")
    return "".join(syllables)


@dataclass(frozen=True)
class Documents:
    """Document n is a function of n and the seed: `pairs` different keys, each with some value.

    keys, values: how many words there are of each; keys have two syllables and values three.
    """

    pairs: int
    keys: int = 256
    values: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= self.keys:
            raise ValueError(f"pairs={self.pairs}: it must be from 1 to the {self.keys} keys")

    def __getitem__(self, n: int) -> dict[str, str]:
        """The columns of a document of SWDE or FDA: text, key and value."""
        keys, values, asked = self.draw(n)
        return {
            "text": " ".join(map(sentence, keys, values)),
            "key": keys[asked],
            "value": values[asked],
        }

    def draw(self, n: int) -> tuple[list[str], list[str], int]:
        """Keys, their values, and which key is asked for."""
        random = np.random.default_rng([self.seed, n])
        keys = random.choice(self.keys, self.pairs, replace=False)
        values = random.choice(self.values, self.pairs)
        asked = int(random.integers(self.pairs))
        return [word(k, 2) for k in keys], [word(v, 3) for v in values], asked


def sentence(key: str, value: str) -> str:
    """One pair as it stands in a document; `Key:` alone is the question."""
    return f"{key.capitalize()}: {value}."


def vocabulary(documents: Documents) -> list[str]:
    """Everything that stands between two spaces of a document, for a tokenizer of words."""
    keys = [f"{word(n, 2).capitalize()}:" for n in range(documents.keys)]
    return [*keys, *(f"{word(n, 3)}." for n in range(documents.values))]
