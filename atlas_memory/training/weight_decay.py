"""Which parameters weight decay pulls towards zero."""

from __future__ import annotations

from typing import Any

from torch import nn

RULES = ("matrices", "linear", "all")


def decayed_names(model: nn.Module, rule: str = "matrices") -> list[str]:
    """The parameters of `model` that decay, in the model's order.

    matrices: all with two axes or more, embeddings, taps, gates and W_0 among them; norms, biases
        and the feature map's log coefficients do not decay. The rule of `atlas train`.
    linear: the weights of linear layers alone; a head that is tied to the embedding is one. The
        rule of the experiments and benchmarks, whose published figures were made with it.
    all: every parameter, as MAD's own code does.
    """
    named = list(model.named_parameters())
    if rule == "matrices":
        return [n for n, p in named if p.ndim >= 2 and not n.endswith("log_coefficients")]
    if rule == "linear":
        linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
        return [n for n, p in named if id(p) in linear]
    if rule == "all":
        return [n for n, _ in named]
    raise ValueError(f"unknown rule of weight decay {rule!r}; choose from: {', '.join(RULES)}")


def decay_groups(model: nn.Module, decay: float, rule: str) -> list[dict[str, Any]]:
    """An optimizer's groups: what decays, and what does not, where there is any."""
    names, named = set(decayed_names(model, rule)), list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if n in names], "weight_decay": decay},
        {"params": [p for n, p in named if n not in names], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
