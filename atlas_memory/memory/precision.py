"""Whether factors of products are rounded to bfloat16 just now (`products.py`)."""

import threading

_precision = threading.local()


def rounds() -> bool:
    return getattr(_precision, "rounds", False)


class Rounding:
    """Round them, or do not, while this context lasts; a generator's would take longer to enter."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __enter__(self) -> None:
        self.before, _precision.rounds = rounds(), self.on

    def __exit__(self, *error: object) -> None:
        _precision.rounds = self.before
