"""MAD: six synthetic tasks, each at a ladder of difficulties. [Atlas Table 4]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_memory.experiments.experiment import Experiment, Result, Seeded, Table, Workspace
from atlas_memory.family import VARIANTS
from atlas_memory.layers.shapes_only import num_parameters
from atlas_memory.tasks import mad

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

# accuracy in percent; "(Noisy) ICR" of the paper is one figure for both recalls
PUBLISHED = {
    "transformer_plus": (49.4, 100.0, 48.2, 95.9, 83.8),
    "gated_deltanet": (44.8, 100.0, 32.5, 96.2, 81.7),
    "titans": (49.6, 100.0, 49.7, 99.4, 83.5),
    "omeganet": (50.9, 100.0, 54.2, 99.6, 90.2),
    "atlas": (51.6, 100.0, 54.9, 99.6, 91.4),
}
PUBLISHED_TASKS = {
    "compression": 0,
    "in_context_recall": 1,
    "noisy_recall": 1,
    "fuzzy_recall": 2,
    "selective_copying": 3,
    "memorization": 4,
}
_SHAPE = {"width": 128, "hidden": 352, "layers": 2, "memory_heads": 8, "expansion": 4}


@dataclass(frozen=True, kw_only=True)
class Training:
    test: int = mad.TEST
    epochs: int = 200
    batch: int = 128
    schedule: str = "cosine"
    stop_at: float | None = 0.999
    evaluate_every: int = 1
    shape: dict[str, int] = field(default_factory=lambda: dict(_SHAPE))


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """train: sequences, None for as many as the task has."""

    difficulties: dict[str, list[dict[str, Any]]]
    train: int | None = None
    rates: list[float] = field(default_factory=lambda: [1e-3])
    decays: list[float] = field(default_factory=lambda: [0.0])


@dataclass(frozen=True, kw_only=True)
class Cell(Seeded, Training):
    task: str
    changes: dict[str, Any]
    train: int
    rate: float
    decay: float


PAPER = Settings(
    difficulties={name: mad.settings(name) for name in mad.TASKS},
    rates=[1e-4, 5e-4, 1e-3],
    decays=[0.0, 0.1],
)
SMALL = Settings(
    difficulties={"memorization": [{}, {"vocabulary": 2048}]},
    evaluate_every=25,
    shape={**_SHAPE, "memory_heads": 16, "expansion": 1},
)
PRESETS = {
    "smoke": Settings(
        difficulties={name: [{"length": 32}] for name in mad.TASKS}
        | {"selective_copying": [{"length": 32, "copied": 4}], "memorization": [{"length": 16}]},
        train=16,
        test=16,
        epochs=1,
        batch=8,
        shape={"width": 32, "hidden": 32, "layers": 1, "memory_heads": 4, "expansion": 1},
    ),
    "small": SMALL,
    # every task at its first difficulty, half as wide, with the second rung of MAD's sequences
    "baseline": Settings(
        difficulties={
            name: [{} if name == "memorization" else {"train": 3_200}] for name in mad.TASKS
        },
        rates=[2e-3],
        epochs=6,
        batch=16,
        test=320,
        shape={"width": 64, "hidden": 176, "layers": 2, "memory_heads": 4, "expansion": 1},
    ),
    "paper": PAPER,
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    """Difficulty by difficulty, so that every variant has been seen at the first one early."""
    found = []
    for name, difficulties in settings.difficulties.items():
        for changes in difficulties:
            mad.task(name, changes)  # refuses what it does not know
            train = settings.train or changes.get("train", mad.train_size(name))
            own = {"task": name, "changes": changes, "train": train}
            for seed, variant in product(range(seeds), variants):
                for rate, decay in product(settings.rates, settings.decays):
                    own |= {"variant": variant, "seed": seed, "rate": rate, "decay": decay}
                    found.append(Cell.of(settings, **own))
    return found


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    """Train one model on one task at one difficulty."""
    import torch

    from atlas_memory.experiments.fit import Rate, asked_loss, fit

    task = mad.task(cell.task, cell.changes)
    train, test = mad.splits(task, cell.train, cell.test)
    torch.manual_seed(mad.SEED + cell.seed)
    model = workspace.place(_model(cell, task.vocabulary))
    per_epoch = -(-cell.train // cell.batch)
    fitted = fit(
        model,
        _batches(train, cell.batch, cell.seed),
        steps=per_epoch * cell.epochs,
        rate=Rate(cell.rate, cell.schedule, final=1e-6),
        workspace=workspace,
        # as in MAD's own code, where everything decays
        groups=[{"params": list(model.parameters()), "weight_decay": cell.decay}],
        betas=(0.9, 0.999),
        clip=None,
        loss=asked_loss,
        evaluate=lambda: accuracies(model, test, cell.batch),
        every=per_epoch * cell.evaluate_every,
        stop_at=cell.stop_at,
    )
    figures = {name: fitted.last.get(name) for name in ("accuracy", "token_accuracy", "loss")}
    return figures | {
        "steps": fitted.steps,
        "finite": fitted.finite,
        "history": fitted.history,
        "ceiling": ceiling(cell.task, train, test),
        "parameters": num_parameters(model),
        "state_bytes": model.state_bytes(test[0].shape[1]),
    }


def _model(cell: Cell, vocabulary: int) -> Any:
    from atlas_memory.experiments.mad_skeleton import AutoEncoder, LanguageModel, Shape

    kind = AutoEncoder if cell.task == "compression" else LanguageModel
    return kind(cell.variant, vocabulary, Shape(**cell.shape))


def _batches(train: mad.Pair, size: int, seed: int) -> Any:
    """step -> (ids, targets): every epoch in an order of its own."""
    import torch

    inputs, targets = map(torch.from_numpy, train)
    per_epoch = -(-len(inputs) // size)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng((mad.SEED, seed, epoch)).permutation(len(inputs))
        rows = torch.from_numpy(order[place * size : (place + 1) * size])
        return inputs[rows], targets[rows]

    return batch


def accuracies(model: nn.Module, test: mad.Pair, size: int) -> dict[str, float]:
    """MAD's accuracy (macro, by batch) and that of tokens."""
    import torch

    from atlas_memory.experiments.fit import device_of

    scores, right, count, device = [], 0, 0, device_of(model)
    for begin in range(0, len(test[0]), size):
        ids, targets = (torch.from_numpy(x[begin : begin + size]) for x in test)
        asked = targets != mad.IGNORED
        head: Any = model.head
        said = head(model(ids.to(device))[asked.to(device)]).argmax(-1).cpu().numpy()
        truth = targets[asked].numpy()
        scores.append(macro_accuracy(said, truth))
        right, count = right + int((said == truth).sum()), count + len(truth)
    return {"accuracy": float(np.mean(scores)), "token_accuracy": right / count}


def macro_accuracy(said: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> float:
    """Mean over the classes of the share that was right; a class only ever said counts as 0."""
    size = int(max(said.max(), truth.max())) + 1
    asked = np.bincount(truth, minlength=size)
    right = np.bincount(truth[said == truth], minlength=size)
    seen = (asked + np.bincount(said, minlength=size)) > 0
    return float((right / np.maximum(asked, 1))[seen].mean())


def ceiling(task: str, train: mad.Pair, test: mad.Pair) -> float | None:
    """The share of memorization's test keys that training shows at all."""
    if task != "memorization":
        return None
    return float(np.isin(test[0][:, 0::2], train[0][:, 0::2]).mean())


# ---- what is shown ------------------------------------------------------------------------------


def _difficulty(cell: Cell) -> str:
    changes = [f"{name} {value}" for name, value in cell.changes.items()] or ["baseline"]
    return ", ".join([*changes, *([f"seed {cell.seed}"] if cell.seed else [])])


def scores(results: list[Result[Cell]]) -> dict[tuple[str, str], dict[str, Result[Cell]]]:
    """(task, variant) -> difficulty and seed -> the run with the best accuracy of its grid."""
    best: dict[tuple[str, str], dict[str, Result[Cell]]] = {}
    for result in results:
        mine = best.setdefault((result.cell.task, result.cell.variant), {})
        old = mine.get(key := _difficulty(result.cell))
        if old is None or _accuracy(result) > _accuracy(old):
            mine[key] = result
    return best


def _accuracy(result: Result[Cell]) -> float:
    return result.figures["accuracy"] or 0.0


def _mean(best: dict[str, Result[Cell]], name: str) -> float | None:
    figures = [result.figures[name] for result in best.values()]
    known = [figure for figure in figures if figure is not None]
    return float(np.mean(known)) if known else None


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def table(results: list[Result[Cell]]) -> Table:
    columns = ["task", "model", "accuracy", "of tokens", "ceiling", "by difficulty"]
    columns += ["state KB", "parameters", "Atlas Table 4"]
    rows = []
    for (task, variant), best in scores(results).items():
        first = next(iter(best.values()))
        each = "; ".join(f"{key}: {100 * _accuracy(r):.1f}" for key, r in best.items())
        published = PUBLISHED.get(variant)
        row = [task, VARIANTS[variant].title, _percent(_mean(best, "accuracy"))]
        row += [_percent(_mean(best, name)) for name in ("token_accuracy", "ceiling")]
        row += [each, round(first.figures["state_bytes"] / 1024, 1), first.figures["parameters"]]
        row += [None if published is None else published[PUBLISHED_TASKS[task]]]
        rows.append(row)
    notes = [
        "accuracy: MAD's (mean over classes, by batch), the best of the grid, mean over the "
        "difficulties, in percent; of tokens: plain accuracy of the same runs.",
        "state: what the two mixers carry on after one sequence.",
    ]
    if any(task == "memorization" for task, _ in scores(results)):
        notes.append(
            "ceiling: the share of test keys that training shows at all. Over the whole published "
            "ladder it is 91.6: as a mean over it the paper's 91.4 for Atlas would be the ceiling."
        )
    return Table(columns, rows, notes)


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """A group of bars for each difficulty of each task; a line where the ceiling is."""
    best = scores(results)
    variants = list(dict.fromkeys(variant for _, variant in best))
    groups = [(task, key) for task, v in best if v == variants[0] for key in best[task, v]]
    figure.set_size_inches(max(6.0, 1.6 * len(groups) + 2), 4)
    axes = figure.subplots()
    width = 0.8 / len(variants)
    for n, variant in enumerate(variants):
        place = [g + (n - (len(variants) - 1) / 2) * width for g in range(len(groups))]
        mine = [best.get((task, variant), {}).get(key) for task, key in groups]
        height = [100 * _accuracy(result) if result else 0.0 for result in mine]
        axes.bar(place, height, width, label=VARIANTS[variant].title)
    for g, (task, key) in enumerate(groups):
        top = best[task, variants[0]][key].figures["ceiling"]
        if top is not None:
            axes.hlines(100 * top, g - 0.42, g + 0.42, color="black", linewidth=1)
    names = [f"{task.replace('_', ' ')}\n{key}" for task, key in groups]
    axes.set_xticks(range(len(groups)), names, fontsize=8)
    axes.set_ylabel("accuracy (MAD)")
    axes.set_ylim(0, 105)
    axes.legend(
        fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(4, len(variants))
    )


def deviations(settings: Settings) -> list[str]:
    """Where the settings differ from the released benchmark."""
    said = [
        "float32, not bfloat16 mixed precision",
        "Atlas does not say which difficulties, grid or state size stand behind its table",
    ]
    if settings.schedule == "cosine":
        said.append("cosine to 1e-6 as the paper of MAD says; its code trains at a constant rate")
    if settings.train is not None:
        said.append(f"{settings.train} training sequences, whatever the task has")
    for name, published in vars(PAPER).items():
        own = getattr(settings, name)
        if own != published and name not in ("difficulties", "train"):
            said.append(f"{name} is {own}, published {published}")
    runs = sum(map(len, settings.difficulties.values()))
    if runs != 66:
        said.append(f"{runs} of the 66 difficulties: {settings.difficulties}")
    return said


EXPERIMENT = Experiment(
    "mad",
    "Does a better memory rule do better on MAD's six synthetic tasks? The paper says "
    "Atlas leads on all of them (Table 4); measured: accuracy on the same tasks.",
    *(PRESETS, tuple(PUBLISHED), cells, run, table, plot, deviations),
)
