"""Which parameters weight decay pulls towards zero: one rule for all that is trained here."""

from typing import Any

from torch import nn


def decayed_names(model: nn.Module) -> list[str]:
    """The parameters of `model` that decay, in the model's order: the matrices of linear maps.

    Not embeddings, the taps of convolutions, gates, a memory's first weights W_0, the feature map's
    coefficients, norms and biases: a smaller value of theirs means something else, not less of the
    same. A head that is tied to the embedding is the embedding, and does not decay either.
    """
    owned = {
        kind: {id(p) for m in model.modules() if isinstance(m, kind) for p in m.parameters(False)}
        for kind in (nn.Linear, nn.Embedding)
    }
    maps = owned[nn.Linear] - owned[nn.Embedding]
    return [n for n, p in model.named_parameters() if id(p) in maps and p.ndim == 2]


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """An optimizer's groups: what decays, and what does not, where there is any."""
    names, named = set(decayed_names(model)), list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if n in names], "weight_decay": decay},
        {"params": [p for n, p in named if n not in names], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
