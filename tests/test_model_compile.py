"""torch.compile of a training step and of decoding: numbers of eager, and no graph per token."""

import pytest
import torch
from models import build, text
from torch._dynamo.utils import counters

from atlas_memory.variants import variants

# torch hides this warning of its own from users, but not from a filter that makes it an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# What is traced and when it is traced again does not depend on the backend; C++ is the slow part.
TRACED = ["transformer_plus", "atlas"]


@pytest.fixture
def backend(request):
    torch.compiler.reset()
    counters.clear()
    yield request.param
    torch.compiler.reset()


def cases():
    fast = [pytest.param(name, "aot_eager", id=f"{name}-traced") for name in TRACED]
    slow = [pytest.param(name, "inductor", marks=pytest.mark.compile) for name in variants()]
    return pytest.mark.parametrize(("variant", "backend"), fast + slow, indirect=["backend"])


def graphs():
    return counters["stats"]["unique_graphs"]


def loss(model, ids):
    return model(ids, labels=ids, use_cache=False).loss


def decode(model, ids, cache):
    out = model(ids, past_key_values=cache, use_cache=True)
    return out.logits, out.past_key_values


def gradients(model, step, ids):
    model.zero_grad()
    value = step(model, ids)
    value.backward()
    return value.detach(), [p.grad.clone() for p in model.parameters()]


@cases()
def test_a_compiled_training_step(variant, backend):
    model = build(variant).float().train()
    step = torch.compile(loss, backend=backend)
    for length in (33, 41):
        ids = text(model, 2, length)
        found = gradients(model, step, ids)
        torch.testing.assert_close(found, gradients(model, loss, ids), **CLOSE)
    assert graphs() > 0


@cases()
def test_compiled_decoding(variant, backend):
    """From token 10 across the borders of chunk, window and segment at 16 and 32.

    A cache that grows is traced a second time, a segment that opens too; nothing after that.
    """
    model, made = build(variant).float(), []
    ids, step = text(model, 2, 33), torch.compile(decode, backend=backend)
    with torch.no_grad():
        _, eager = decode(model, ids[:, :10], None)
        compiled = eager
        for token in ids[:, 10:].split(1, dim=1):
            expected, eager = decode(model, token, eager)
            logits, compiled = step(model, token, compiled)
            torch.testing.assert_close(logits, expected, **CLOSE)
            made.append(graphs())
    assert made[0] > 0
    assert made[-1] == made[7], f"graphs after each token: {made}"


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("backend", ["aot_eager"], indirect=True)
def test_layers_that_are_alike_share_their_graphs(depth, backend):
    model = build("transformer_plus", num_hidden_layers=depth).float().train()
    gradients(model, torch.compile(loss, backend=backend), text(model, 2, 17))
    assert graphs() == 3  # the block, the last norm, the loss
