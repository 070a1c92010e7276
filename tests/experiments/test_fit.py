"""The training loop: it learns, and a killed fit goes on bit for bit."""

import math

import pytest
import torch
from torch import nn

from atlas_memory.experiments import fit as module
from atlas_memory.experiments.experiment import Workspace
from atlas_memory.experiments.fit import Rate, fit, placed

RATE = Rate(0.01)


def work(folder, **options):
    return Workspace(folder, lambda line: None, **options)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 1))


def batch(step):
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
    return x, x.prod(1, keepdim=True)


def error(network, pair):
    return (network(pair[0]) - pair[1]).square().mean()


def run(network, batches=batch, **options):
    return fit(network, batches, steps=20, rate=RATE, loss=error, every=5, **options)


def test_a_killed_fit_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    whole = model()
    one = run(whole)

    def killed(step):
        if step == 13:
            raise KeyboardInterrupt
        return batch(step)

    with pytest.raises(KeyboardInterrupt):
        run(model(), killed, workspace=work(tmp_path))
    again = model()
    torch.manual_seed(99)
    two = run(again, workspace=work(tmp_path))
    assert two.history == one.history
    assert [entry["step"] for entry in two.history] == [5, 10, 15, 20]
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_fit_is_not_made_again(tmp_path):
    one = run(model(), workspace=work(tmp_path))

    def never(step):
        raise AssertionError(step)

    two = run(model(), never, workspace=work(tmp_path))
    assert two.history == one.history


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut"])
def test_a_damaged_checkpoint_is_a_new_fit(tmp_path, damage):
    (tmp_path / module.CHECKPOINT).write_bytes(damage)
    assert run(model(), workspace=work(tmp_path)).history == run(model()).history


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


def test_a_precision_is_that_of_the_loss_alone(tmp_path):
    seen = []

    def spy(network, pair):
        y = network(pair[0])
        seen.append(y.dtype)
        return (y.float() - pair[1]).square().mean()

    network = model()
    rounded = work(tmp_path, precision="bfloat16")
    fitted = fit(network, batch, steps=2, rate=RATE, loss=spy, workspace=rounded)
    assert seen == [torch.bfloat16] * 2
    assert fitted.finite
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_schedules():
    at = [Rate(1.0, "cosine", 2, 0.1).at(n, 10) for n in (0, 1, 2, 6, 10)]
    assert at == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1])
    assert Rate(1.0, "constant").at(9, 10) == 1.0
    with pytest.raises(ValueError, match="unknown schedule 'linear'; choose from: cosine"):
        Rate(1.0, "linear")
