"""The training loop: it learns, and a killed fit goes on bit for bit."""

import math

import pytest
import torch
from torch import nn

from atlas_memory.experiments import fit as module
from atlas_memory.experiments.fit import fit, learning_rate_at, placed


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 1))


def batch(step):
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
    return x, x.prod(1, keepdim=True)


def error(network, pair):
    return (network(pair[0]) - pair[1]).square().mean()


def run(network, batches=batch, **options):
    return fit(network, batches, steps=20, learning_rate=0.01, loss=error, every=5, **options)


def test_a_killed_fit_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    whole = model()
    one = run(whole)

    def killed(step):
        if step == 13:
            raise KeyboardInterrupt
        return batch(step)

    with pytest.raises(KeyboardInterrupt):
        run(model(), killed, folder=tmp_path)
    again = model()
    torch.manual_seed(99)
    two = run(again, folder=tmp_path)
    assert two.history == one.history
    assert [entry["step"] for entry in two.history] == [5, 10, 15, 20]
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_fit_is_not_made_again(tmp_path):
    one = run(model(), folder=tmp_path)

    def never(step):
        raise AssertionError(step)

    two = run(model(), never, folder=tmp_path)
    assert two.history == one.history


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut"])
def test_a_damaged_checkpoint_is_a_new_fit(tmp_path, damage):
    (tmp_path / module.CHECKPOINT).write_bytes(damage)
    assert run(model(), folder=tmp_path).history == run(model()).history


def test_it_stops_at_the_accuracy_and_at_a_loss_that_is_not_finite():
    stopped = run(model(), evaluate=lambda: {"accuracy": 0.95}, stop_at=0.9)
    assert (stopped.steps, stopped.finite) == (5, True)
    diverged = run(model(), lambda step: (batch(step)[0], torch.tensor(math.inf)))
    assert (diverged.steps, diverged.finite) == (1, False)


def test_batches_go_where_the_model_lies(monkeypatch):
    """On a device without values, which mixes with no other; what is asked for is 1."""
    monkeypatch.setattr(torch.Tensor, "item", lambda x: 1.0)
    network = model().to("meta")
    fitted = run(network)
    assert fitted.steps == 20
    assert {p.device.type for p in network.parameters()} == {"meta"}
    ids, weight = placed((torch.zeros(2), 0.5), torch.device("meta"))
    assert (ids.device.type, weight) == ("meta", 0.5)


def test_a_precision_is_that_of_the_loss_alone():
    seen = []

    def spy(network, pair):
        y = network(pair[0])
        seen.append(y.dtype)
        return (y.float() - pair[1]).square().mean()

    network = model()
    fitted = fit(network, batch, steps=2, learning_rate=0.01, loss=spy, precision="bfloat16")
    assert seen == [torch.bfloat16] * 2
    assert fitted.finite
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_schedules():
    at = [learning_rate_at(n, 10, 1.0, "cosine", 2, 0.1) for n in (0, 1, 2, 6, 10)]
    assert at == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
    assert learning_rate_at(9, 10, 1.0, "constant", 0) == 1.0
    with pytest.raises(ValueError, match="unknown schedule 'linear'; choose from: cosine"):
        run(model(), schedule="linear")
