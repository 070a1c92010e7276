"""Small language models: a row of a table, trained on text and scored in bits per byte."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atlas_memory.config import AtlasConfig
from atlas_memory.data.corpus import Corpus, find_source, load_corpus, require_length
from atlas_memory.data.tokenizer import Tokenizer, load_tokenizer
from atlas_memory.data.windows import InOrder, Shuffled
from atlas_memory.experiments.experiment import Result, Seeded, Workspace
from atlas_memory.experiments.fit import Rate, device_of, fit, labelled_loss, placed
from atlas_memory.experiments.language_model import Text
from atlas_memory.family import VARIANTS
from atlas_memory.training.prepare import equal_width, parameters_of
from atlas_memory.training.reread import reread

POSITIONS = 16  # stretches of a window that are scored apart
VALIDATION_SHARE = 0.1  # of a text that has no split of its own


@dataclass(frozen=True, kw_only=True)
class TextCell(Seeded, Text):
    """A variant with changes, trained on windows of `length` tokens."""

    length: int
    batch: int


def load_text(source: str, tokenizer: Tokenizer, say: Callable[[str], None]) -> Corpus:
    """What `atlas train --data` opens; `python` is the standard library's own source."""
    place = f"{sysconfig.get_path('stdlib')}/*.py" if source == "python" else source
    return load_corpus(
        find_source(place, "text", say),
        tokenizer,
        most_tokens=None,
        validation_share=VALIDATION_SHARE,
    )


def fitting(variant: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes that a variant has a place for: those of a deep memory are not for a matrix."""
    spec = VARIANTS[variant].memory
    plain = {} if spec is None else spec.to_dict()

    def fits(name: str) -> bool:
        if name == "memory.chunk" and plain.get("chunk") == 1:  # exact at every token
            return False
        table: Any = {"memory": plain}
        for part in name.split(".") if name.startswith("memory.") else ():
            if not isinstance(table, dict) or part not in table:
                return False
            table = table[part]
        return True

    return {name: value for name, value in changes.items() if fits(name)}


def make_config(cell: TextCell, vocab_size: int) -> AtlasConfig:
    """A variant with changes; the feed-forward networks fill it up to `parameters`."""
    changes = {"vocab_size": vocab_size, **cell.changes}
    config = AtlasConfig.from_variant(cell.variant, size=cell.size, **changes)
    if cell.parameters is None:
        return config
    changes["intermediate_size"] = equal_width(config, cell.parameters)
    return AtlasConfig.from_variant(cell.variant, size=cell.size, **changes)


def train_and_score(cell: TextCell, workspace: Workspace) -> dict[str, Any]:
    """Train the model of a cell and score it on the start of the validation text."""
    from atlas_memory.model import AtlasForCausalLM

    length = cell.length + 1  # one more than the model reads: it predicts the next
    tokenizer = load_tokenizer(cell.tokenizer)
    corpus = load_text(cell.data, tokenizer, workspace.say)
    require_length(corpus.train, length, "training")
    require_length(corpus.validation, length, "validation")
    config = make_config(cell, tokenizer.vocab_size)
    torch.manual_seed(cell.seed)
    model = workspace.place(AtlasForCausalLM(config))
    examples = Shuffled(corpus.train, length, cell.seed, cell.steps * cell.batch)
    held_out = InOrder(corpus.validation, length, max(1, cell.validation_tokens // length))

    def batches(step: int) -> tuple[Tensor, Tensor]:
        first = step * cell.batch
        ids = [examples[n]["input_ids"] for n in range(first, first + cell.batch)]
        return shifted(torch.stack(ids))

    flops = flops_of_a_step(model, batches(0))
    fitted = fit(
        model,
        batches,
        steps=cell.steps,
        rate=Rate(cell.learning_rate, warmup=cell.warmup, final=0.1 * cell.learning_rate),
        workspace=workspace,
        weight_decay=0.1,
        every=max(1, cell.steps // 4),
    )
    kept = corpus.validation.ids[: cell.validation_tokens]
    by_position = score(model, held_out, cell.batch) if fitted.finite else []
    by_position = [bits / corpus.validation.bytes_per_token for bits in by_position]
    return {
        "bits": sum(by_position) / len(by_position) if by_position else math.inf,
        "by_position": [float(f"{bits:.4f}") for bits in by_position],
        "parameters": parameters_of(config),
        "reread": reread(model, kept) if fitted.finite else None,
        "tokens": cell.steps * cell.batch * cell.length,
        "flops": flops * cell.steps,
    }


GAP = 256  # tokens between two readings, for the column of a table
SECOND = f"second reading, gap {GAP}"  # its head


def second(results: Sequence[Result[Any]]) -> float | None:
    """Mean share of the first reading that the second costs, of those that were measured."""
    found = [(r.figures.get("reread") or {}).get(f"gap_{GAP}") for r in results]
    shares = [share for share in found if share is not None]
    return mean(shares) if shares else None


def shifted(ids: Tensor) -> tuple[Tensor, Tensor]:
    return ids[:, :-1], ids[:, 1:]


@torch.no_grad()
def score(model: Any, examples: InOrder, batch: int) -> list[float]:
    """Bits per token in POSITIONS equal stretches of the window, from its start to its end."""
    model.eval()
    losses = []
    for first in range(0, len(examples), batch):
        last = min(first + batch, len(examples))
        rows = torch.stack([examples[n]["input_ids"] for n in range(first, last)])
        ids, labels = shifted(rows.to(model.device))
        logits = model(ids, use_cache=False).logits.float()
        losses.append(cross_entropy(logits.mT, labels, reduction="none"))
    by_position = torch.cat(losses).mean(0) / math.log(2)
    parts = by_position.tensor_split(min(POSITIONS, len(by_position)))
    return [float(part.mean()) for part in parts]


def flops_of_a_step(model: Any, batch: tuple[Tensor, Tensor]) -> int:
    """Floating-point operations of the matrix products of one step, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        labelled_loss(model, placed(batch, device_of(model))).backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
