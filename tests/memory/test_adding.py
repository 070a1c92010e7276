"""A new choice is a class and a row: every form takes it without being told."""

from dataclasses import dataclass, replace

import pytest
import torch

from atlas_memory.memory import MLP, Gates, Matrix, MemorySpec, memorize
from atlas_memory.memory.attentional_bias import BIASES, AttentionalBias
from atlas_memory.memory.retention import RETENTIONS, RetentionRule


@dataclass(frozen=True)
class LogCosh(AttentionalBias):
    """l = sum log cosh(y - v)."""

    def loss(self, y, v):
        return torch.log(torch.cosh(y - v)).sum(dim=-1)

    def surprise(self, y, v):
        return torch.tanh(y - v)


@dataclass(frozen=True)
class Clipped(RetentionRule):
    """W_t is what was accumulated, no entry larger than `most`."""

    most: float = 0.5
    mapped = True

    def weights(self, L):
        return L.clamp(-self.most, self.most)


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(BIASES, "log_cosh", LogCosh)
    monkeypatch.setitem(RETENTIONS, "clipped", Clipped)


@pytest.mark.parametrize("architecture", [Matrix(), MLP(expansion=2)])
@pytest.mark.parametrize("choice", [{"bias": LogCosh()}, {"retention": Clipped()}])
def test_all_forms_take_it(known, choice, architecture):
    spec = replace(MemorySpec(architecture=architecture, window=3, chunk=4), **choice)
    assert MemorySpec.from_dict(spec.to_dict()) == spec
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = torch.nn.functional.normalize(draw(3, 2, 2, 11, 4), dim=-1)
    gates = Gates(alpha=draw(2, 2, 11).sigmoid(), eta=0.1 * draw(2, 2, 11).sigmoid())
    weights = tuple(0.3 * draw(2, *shape) for shape in architecture.shapes(4, 4))
    y, _ = memorize(q, k, v, gates, weights, spec, form="recurrent")
    fast, _ = memorize(q, k, v, gates, weights, spec)
    torch.testing.assert_close(fast, y, rtol=1e-9, atol=1e-9)
    steps, state = [], None
    for i in range(11):
        now = (x[:, :, i : i + 1] for x in (q, k, v))
        answer, state = memorize(
            *now, gates.map(lambda x, i=i: x[:, :, i : i + 1]), weights, spec, state
        )
        steps.append(answer)
    torch.testing.assert_close(torch.cat(steps, dim=2), y, rtol=1e-9, atol=1e-9)
