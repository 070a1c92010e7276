"""transformers' Auto classes learn about our models when they are loaded, and not before.

`import atlas_memory` must not cost the import of transformers. So it only leaves a note at the
door: whoever imports the Auto classes imports our config and model with them, and these register.
"""

import sys
from collections.abc import Sequence
from importlib import import_module, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OURS = {
    "transformers.models.auto.configuration_auto": "atlas_memory.config",
    "transformers.models.auto.modeling_auto": "atlas_memory.model",
}


class AlsoImport(MetaPathFinder):
    """Finds nothing itself; makes a module that is waited for bring another one with it."""

    def __init__(self, waiting: dict[str, str]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        ours = self.waiting.pop(name)
        spec = util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_both(module: ModuleType) -> None:
            load(module)
            import_module(ours)

        spec.loader.exec_module = load_both  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Register now what is already loaded, and the rest when it is."""
    if any(isinstance(finder, AlsoImport) for finder in sys.meta_path):
        return
    for theirs, ours in OURS.items():
        if theirs in sys.modules:
            import_module(ours)
    waiting = {theirs: ours for theirs, ours in OURS.items() if theirs not in sys.modules}
    sys.meta_path.insert(0, AlsoImport(waiting))
