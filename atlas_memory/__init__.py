"""Sequence models that learn to memorize their context at test time."""

from atlas_memory.memory import *  # noqa: F403
from atlas_memory.memory import __all__ as __all__
