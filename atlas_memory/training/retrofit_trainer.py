"""RetrofitTrainer: rates for gates, memories and the base, and learning from the base itself."""

# transformers' Trainer is typed in parts.
# mypy: disable-error-code="no-untyped-call, misc, arg-type, union-attr"

from collections import defaultdict
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.training.retrofit import Retrofit, part_of, rate_of
from atlas_memory.training.trainer import AtlasTrainer, Stream, Surroundings


class RetrofitTrainer(AtlasTrainer):
    """What a retrofitted model needs beside what every model does."""

    def __init__(
        self, chosen: Retrofit, surroundings: Surroundings, stream: Stream | None, **given: Any
    ) -> None:
        super().__init__(surroundings, stream, **given)
        self.chosen = chosen
        self.teacher = _teacher(self.model, chosen) if chosen.distil else None

    def create_optimizer(self, *_: Any) -> Any:
        """AdamW with a group for every part and decay."""
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args)
            self.optimizer = kind(self._groups(options.pop("lr")), **options)
        return self.optimizer

    def _groups(self, rate: float) -> list[dict[str, Any]]:
        decayed = set(self.get_decay_parameter_names(self.model))
        groups: dict[tuple[str, bool], list[nn.Parameter]] = defaultdict(list)
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                groups[part_of(name), name in decayed].append(parameter)
        return [
            {
                "params": parameters,
                "lr": rate * rate_of(part, self.chosen),
                "weight_decay": self.args.weight_decay if decays else 0.0,
            }
            for (part, decays), parameters in groups.items()
        ]

    def taught(self, loss: Tensor, outputs: Any, inputs: dict[str, Any]) -> Tensor:
        """At first what the base would say with full attention, then what the text says."""
        if self.teacher is None or self.state.global_step >= self.chosen.distil:
            return loss
        with torch.no_grad():
            asked = {name: x for name, x in inputs.items() if name != "labels"}
            said = self.teacher(**asked, use_cache=False).logits
        return divergence(outputs.logits, said) / self.args.gradient_accumulation_steps


def divergence(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher | model) of the next token, the mean over all tokens, in nats."""
    own, theirs = (F.log_softmax(x.float(), dim=-1).flatten(0, 1) for x in (logits, teacher))
    return F.kl_div(own, theirs, reduction="batchmean", log_target=True)


def _teacher(model: Any, chosen: Retrofit) -> nn.Module:
    """The base as it is, sharing its frozen tensors; a copy if these are trained."""
    from atlas_memory.retrofitting.build import base_of

    base = base_of(model)
    teacher = deepcopy(base) if chosen.train == "everything" else base
    return teacher.eval()
