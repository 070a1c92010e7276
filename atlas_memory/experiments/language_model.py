"""A language model inside an experiment: trained by `training`, in the cell's own folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Workspace

if TYPE_CHECKING:
    from atlas_memory.reading.loading import Loaded
    from atlas_memory.training.prepare import Prepared
    from atlas_memory.training.recipe import Recipe


def recipe_of(plain: dict[str, Any], variant: str, seed: int) -> Recipe:
    """A recipe from its keys with dots, for one variant and seed."""
    from atlas_memory.training.recipe import Recipe

    return Recipe.from_dict({**plain, "model.variant": variant, "train.seed": seed})


def paper_recipe(size: str, variant: str, seed: int) -> Recipe:
    """The published training of a size, which is the recipe of that name, by one process."""
    recipe = published(size)
    model = replace(recipe.model, variant=variant)
    return replace(recipe, model=model, train=replace(recipe.train, seed=seed, parallel="ddp"))


def published(size: str) -> Recipe:
    """The paper's Table 7 as far as it goes, in the recipe of a size."""
    from atlas_memory.training.recipe import find_recipe, load_recipe

    return load_recipe(find_recipe(size))


@dataclass(frozen=True, kw_only=True)
class Text:
    """What language models that are compared on text have in common: here, for a CPU.

    changes: of a variant's configuration. parameters: what feed-forward networks fill it up to.
    """

    data: str = "enwik8"
    tokenizer: str = "bytes"
    size: str = "tiny"
    changes: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = 200_000
    steps: int = 600
    learning_rate: float = 4e-3
    warmup: int = 20
    validation_tokens: int = 65_536


SMOKE_TEXT: dict[str, Any] = {
    "data": "python",
    "parameters": 20_000,
    "steps": 2,
    "warmup": 1,
    "validation_tokens": 512,
}


def published_text(size: str) -> dict[str, Any]:
    """The published training of a size as fields of `Text`, with the length and the batch."""
    data, train = published(size).data, published(size).train
    return {
        "data": data.source,
        "tokenizer": data.tokenizer,
        "size": size,
        "parameters": None,
        "length": data.length,
        "batch": train.batch,
        "steps": train.steps,
        "learning_rate": train.learning_rate,
        "warmup": train.warmup,
        "validation_tokens": data.validation_tokens,
    }


def train(recipe: Recipe, workspace: Workspace) -> tuple[Loaded, dict[str, Any]]:
    """The trained model and how it did; a run that was stopped goes on from its checkpoint."""
    return train_prepared(prepared(recipe, workspace), workspace)


def prepared(recipe: Recipe, workspace: Workspace) -> Prepared:
    from atlas_memory.training.prepare import prepare

    if workspace.precision is not None:
        recipe = replace(recipe, train=replace(recipe.train, precision=workspace.precision))
    return prepare(recipe, workspace.say)


def train_prepared(what: Prepared, workspace: Workspace) -> tuple[Loaded, dict[str, Any]]:
    from atlas_memory.reading.loading import load_run
    from atlas_memory.training.run import run
    from atlas_memory.training.run_folder import RunFolder

    folder = RunFolder(workspace.folder / "run")
    resume, cpu = folder.path.is_dir(), workspace.device == "cpu"
    ended = run(what, folder, workspace.say, resume=resume, cpu=cpu)
    if not ended.finished:
        raise KeyboardInterrupt
    kept = [
        *("parameters", "tokens", "seconds", "reread"),
        *("validation_loss", "validation_bits_per_byte"),
    ]
    figures = {name: ended.figures[name] for name in kept if name in ended.figures}
    return load_run(folder.path, device=workspace.device), figures
