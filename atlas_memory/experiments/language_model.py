"""A language model inside an experiment: trained by `training`, in the cell's own folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Cell, Workspace

if TYPE_CHECKING:
    from atlas_memory.serving.loading import Loaded
    from atlas_memory.training.prepare import Prepared
    from atlas_memory.training.recipe import Recipe

# The paper's Table 7: peak learning rate and tokens of a size; 4K tokens a text, 0.5M a step
PAPER = {
    "340m": (1.5e-3, 15_000_000_000),
    "760m": (1.25e-3, 30_000_000_000),
    "1.3b": (7e-4, 100_000_000_000),
}
LENGTH, BATCH = 4096, 128


def recipe_of(plain: dict[str, Any], variant: str, seed: int) -> Recipe:
    """A recipe from its keys with dots, for one variant and seed."""
    from atlas_memory.training.recipe import Recipe

    return Recipe.from_dict({**plain, "model.variant": variant, "train.seed": seed})


def paper_recipe(cell: Cell) -> Recipe:
    """The published training of a size: FineWeb, T5's vocabulary, AdamW, cosine."""
    size = cell["recipe"]
    rate, tokens = PAPER[size]
    plain = {
        "model.size": size,
        "data.source": "HuggingFaceFW/fineweb:sample-100BT",
        "data.tokenizer": "google-t5/t5-base",
        "data.length": LENGTH,
        "data.most_tokens": tokens,
        "data.validation_share": 0.0005,
        "data.validation_tokens": 4_000_000,
        "train.steps": tokens // (LENGTH * BATCH),
        "train.batch": BATCH,
        "train.micro_batch": 1,
        "train.learning_rate": rate,
        "train.warmup": 1000,
        "train.precision": "bfloat16",
        "train.checkpoint_layers": True,
        "train.save_every": 500,
    }
    return recipe_of(plain, cell["variant"], cell["seed"])


def train(recipe: Recipe, workspace: Workspace) -> tuple[Loaded, dict[str, Any]]:
    """The trained model and how it did; a run that was stopped goes on from its checkpoint."""
    return train_prepared(prepared(recipe, workspace), workspace)


def prepared(recipe: Recipe, workspace: Workspace) -> Prepared:
    from atlas_memory.training.prepare import prepare

    return prepare(recipe, workspace.say)


def train_prepared(what: Prepared, workspace: Workspace) -> tuple[Loaded, dict[str, Any]]:
    from atlas_memory.serving.loading import load_run
    from atlas_memory.training.run import run
    from atlas_memory.training.run_folder import RunFolder

    folder = RunFolder(workspace.folder / "run")
    ended = run(what, folder, workspace.say, resume=folder.path.is_dir())
    if not ended.finished:
        raise KeyboardInterrupt
    kept = ("parameters", "tokens", "validation_loss", "validation_bits_per_byte", "reread")
    figures = {name: ended.figures[name] for name in kept if name in ended.figures}
    return load_run(folder.path), figures
