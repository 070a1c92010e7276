"""AtlasTrainer: transformers' Trainer with whole checkpoints, carried memory and exact metrics."""

# transformers' Trainer is typed in parts.
# mypy: disable-error-code="no-untyped-call, untyped-decorator, no-any-return, misc"
# mypy: disable-error-code="arg-type, union-attr, operator, import-untyped"

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import Trainer

from atlas_memory.cache import AtlasCache
from atlas_memory.names import reason
from atlas_memory.training import checkpoints
from atlas_memory.training.divergence import report
from atlas_memory.training.run_folder import RunFolder
from atlas_memory.training.weight_decay import decayed_names

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
DATA = "data.json"


@dataclass(frozen=True)
class Surroundings:
    """What a trainer has to know beside the arguments of transformers.

    data: what the order of the examples depends on; a checkpoint of other data is refused.
    bytes_per_token: of the validation text, or None where there is no text.
    """

    folder: RunFolder
    data: dict[str, Any]
    bytes_per_token: float | None
    keep: int
    say: Callable[[str], None]


class AtlasTrainer(Trainer):
    """What is ours: how a checkpoint is written and read, what a loss may be, what is measured."""

    def __init__(self, surroundings: Surroundings, stream: Stream | None, **given: Any) -> None:
        super().__init__(compute_metrics=self._metrics, **given)
        self.surroundings, self.stream = surroundings, stream
        self._draft: Path | None = None
        self._batch: dict[str, Tensor] = {}

    def create_accelerator_and_postprocess(self) -> None:
        """accelerate shards models on accelerators only and says nothing on a CPU; let it there."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp_plugin_args is not None and not self.is_fsdp_enabled:
            from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

            state = self.accelerator.state
            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    # ---- steps -----------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The model's loss; with a stream, of a segment that goes on where the last one ended."""
        self._batch = dict(inputs)
        if self.stream is not None:
            inputs = {**inputs, "past_key_values": self.stream.take(), "use_cache": True}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.stream is not None:
            self.stream.give(outputs.past_key_values)
        if not math.isfinite(value := loss.item()):
            raise self._diverged(f"the loss is {value}")
        loss = self.taught(loss, outputs, inputs)
        return (loss, outputs) if return_outputs else loss

    def taught(self, loss: Tensor, outputs: Any, inputs: dict[str, Any]) -> Tensor:
        """What is learned from a batch: its own loss, unless there is a teacher."""
        return loss

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip, and stop before a gradient that is no number reaches the weights."""
        norm = super()._clip_grad_norm(model)
        if norm is not None and not math.isfinite(value := float(norm)):
            raise self._diverged(f"the gradient's norm is {value}")
        return norm

    def _diverged(self, what: str) -> Exception:
        folder = self.surroundings.folder.divergence
        if self.args.world_size > 1:
            folder = folder / f"process-{self.args.process_index}"
        model = None if self.is_fsdp_enabled else self.model
        return report(folder, model, self._batch, self.state.global_step, what)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decayed_names(model)

    # ---- validation ------------------------------------------------------------------------

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Tensor, Tensor]:
        """Of every row: nats, tokens and right guesses. Their sums are exact whatever the batch."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        with torch.no_grad(), self.compute_loss_context_manager():
            given = {name: x for name, x in inputs.items() if name != "labels"}
            logits = model(**given, use_cache=False).logits[:, :-1].float()
        targets = labels[:, 1:]
        nats = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        right = (logits.argmax(dim=-1) == targets).sum(dim=1)
        rows = torch.stack([nats.sum(dim=1), (targets != -100).sum(dim=1), right], dim=1)
        return None, rows, torch.zeros(len(rows), 1, device=rows.device)

    def _metrics(self, evaluated: Any) -> dict[str, float]:
        nats, tokens, right = evaluated.predictions.astype("float64").sum(axis=0)
        bits = nats / tokens / math.log(2)
        found = {"loss": nats / tokens, "bits_per_token": bits, "tokens": tokens}
        if self.surroundings.bytes_per_token is None:
            return {**found, "accuracy": right / tokens}
        bits_per_byte = bits / self.surroundings.bytes_per_token
        return {**found, "bits_per_byte": bits_per_byte, "byte_perplexity": 2**bits_per_byte}

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """The best model so far is worth a checkpoint."""
        best: bool = super()._determine_best_metric(metrics, trial)
        self.control.should_save = self.control.should_save or best
        return best

    # ---- checkpoints -----------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        """Where `_save_checkpoint` of transformers writes: a draft, while one is written."""
        return str(self._draft or self.surroundings.folder.checkpoints)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        name = f"{checkpoints.PREFIX}{self.state.global_step}"
        folder = self.surroundings.folder.checkpoints
        self._draft = folder / f".{name}"
        try:
            super()._save_checkpoint(model, trial)
            self._save_own(self._draft / name)
            self._wait()
            if self.args.should_save:
                checkpoints.publish(self._draft / name, folder / name)
                best = self.state.best_global_step
                checkpoints.forget(folder, self.surroundings.keep, best)
        except Exception as error:
            raise self._save_error(name, error) from error
        finally:
            if self.args.should_save:
                shutil.rmtree(self._draft, ignore_errors=True)
            self._draft = None
        self._wait()

    def _save_own(self, draft: Path) -> None:
        if self.stream is not None:
            self.stream.save(draft, self.args.process_index, self.args.world_size)
        if self.args.should_save:
            # The folder of the best checkpoint follows from its step; a path would not survive
            # the renaming of this one.
            self.state.best_model_checkpoint = None
            self.state.save_to_json(str(draft / "trainer_state.json"))
            (draft / DATA).write_text(json.dumps(self.surroundings.data))

    def _save_error(self, name: str, error: Exception) -> checkpoints.SaveError:
        folder = self.surroundings.folder.checkpoints
        older = [p.name for p in checkpoints.checkpoints(folder)]
        free = shutil.disk_usage(folder).free / 1e6
        left = f"{older[-1]} is intact" if older else "there is no older one"
        return checkpoints.SaveError(
            f"{name} could not be written to {folder}: {reason(error)} ({free:,.0f} MB free); "
            f"{left}; make room, then go on with: "
            f"atlas train {self.surroundings.folder.path} --resume"
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers does it; the weights of a sharded model are gathered by all first."""
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        weights = get_model_state_dict(self.model, options=WHOLE)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        for tied in self._tied():
            del weights[tied]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        for part in (self.model.config, self.model.generation_config, self.processing_class):
            if part is not None:
                part.save_pretrained(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """One form for one process and many, sharded or not, so that each can read the others'."""
        state = get_optimizer_state_dict(self.model, self._torch_optimizer(), options=WHOLE)
        if self.args.should_save:
            torch.save(state, Path(output_dir) / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = torch.load(Path(checkpoint) / "optimizer.pt", weights_only=True)
        set_optimizer_state_dict(self.model, self._torch_optimizer(), state, options=WHOLE)
        scheduler = torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True)
        self.lr_scheduler.load_state_dict(scheduler)
        if self.stream is not None:
            where = (self.args.process_index, self.args.world_size)
            self.stream.load(Path(checkpoint), *where, self.surroundings.say)

    def _load_from_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        if not self.is_fsdp_enabled:
            super()._load_from_checkpoint(checkpoint, model)
        elif model is not None:
            weights = load_file(Path(checkpoint) / "model.safetensors")
            for tied, kept in self._tied().items():
                weights[tied] = weights[kept]
            set_model_state_dict(model, weights, options=WHOLE)

    def _tied(self) -> dict[str, str]:
        """Tensors that a checkpoint leaves out, and which ones they are the same as."""
        tied: Any = self.model._tied_weights_keys
        return tied if self.model.config.tie_word_embeddings else {}

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        optimizer: Any = self.optimizer
        return getattr(optimizer, "optimizer", optimizer)

    def _wait(self) -> None:
        self.accelerator.wait_for_everyone()


def require_same_data(checkpoint: Path, data: dict[str, Any]) -> None:
    """To go on means to read on: the order of the examples must be that of the checkpoint."""
    saved = json.loads((checkpoint / DATA).read_text())
    for name in {**data, **saved}:
        if saved.get(name) != data.get(name):
            raise ValueError(
                f"{checkpoint} was trained with data {name}={saved.get(name)!r} and this run has "
                f"{data.get(name)!r}; resume with the same data, or start a new run"
            )


# ---- carried memory ------------------------------------------------------------------------------


class Stream:
    """Consecutive segments of a text, one after another through one memory.

    What a segment leaves behind is where the next one begins, without its graph: truncated
    back-propagation through time. It belongs to the checkpoint as the weights do. There is one
    cache for every micro-batch of a step; they come round in the same order each step.
    """

    def __init__(self, micro_batches: int) -> None:
        self.caches: list[AtlasCache | None] = [None] * micro_batches
        self.turn = 0

    def take(self) -> AtlasCache | None:
        """What the micro-batch that comes now has read so far."""
        return self.caches[self.turn]

    def give(self, cache: AtlasCache) -> None:
        """What it has read by now; the next one comes."""
        self.caches[self.turn] = cache.detach()
        self.turn = (self.turn + 1) % len(self.caches)

    def save(self, folder: Path, process: int, processes: int) -> None:
        for turn, cache in enumerate(self.caches):
            if cache is not None:
                cache.save(folder / _name(turn, len(self.caches), process, processes))

    def load(self, folder: Path, process: int, processes: int, say: Callable[[str], None]) -> None:
        """Go on as saved. A run that is divided differently begins with an empty memory."""
        names = [
            _name(turn, len(self.caches), process, processes) for turn in range(len(self.caches))
        ]
        if all((folder / name).is_file() for name in names):
            self.caches = [AtlasCache.load(folder / name) for name in names]
        else:
            say("the carried memory was saved by another division of the batch; it starts empty")


def _name(turn: int, turns: int, process: int, processes: int) -> str:
    return f"stream-{process}-of-{processes}-{turn}-of-{turns}.safetensors"
