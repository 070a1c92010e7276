"""torch.compile of a training step and of decoding: numbers of eager, and no graph per token."""

import pytest
import torch
from models import build, text
from torch._dynamo.utils import counters

from atlas_memory.family import variants

# torch hides this warning of its own from users, but not from a filter that makes it an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compiled_model(function, model, backend):
    """`model.compile()`: its blocks, in place."""
    model.compile(backend=backend)
    return function


def compiled_function(function, model, backend):
    """`torch.compile` around everything."""
    return torch.compile(function, backend=backend)


def cases():
    # What is traced, and when again, is the same for every backend; C++ is what takes long.
    fast = [
        pytest.param("transformer_plus", compiled_function, "aot_eager"),
        pytest.param("atlas", compiled_model, "aot_eager"),
    ]
    slow = [(name, compiled_model, "inductor") for name in variants()]
    slow += [(name, compiled_function, "inductor") for name in ("swa", "atlas", "atlas_mac")]
    marked = [pytest.param(*case, marks=pytest.mark.compile) for case in slow]
    return pytest.mark.parametrize(("variant", "compiled", "backend"), fast + marked)


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
def test_a_training_step(variant, compiled, backend):
    model, plain = build(variant).float().train(), build(variant).float().train()
    step = compiled(loss, model, backend)
    # A second length is compiled for all lengths, which takes longest.
    for length in (33, 41) if backend == "inductor" else (33,):
        ids = text(model, 2, length)
        expected = gradients(plain, loss, ids)
        torch.testing.assert_close(gradients(model, step, ids), expected, **CLOSE)
    assert graphs() > 0


@cases()
def test_decoding(variant, compiled, backend):
    """From token 10 across the borders of chunk, window and segment at 16 and 32.

    A cache that grows is traced a second time, a segment that opens too; nothing after that. In
    float64, since Muon makes 1e-4 in the logits out of the rounding of float32.
    """
    model, plain, made = build(variant), build(variant), []
    ids, step = text(model, 2, 33), compiled(decode, model, backend)
    with torch.no_grad():
        _, expected_cache = decode(plain, ids[:, :10], None)
        cache = expected_cache
        for token in ids[:, 10:].split(1, dim=1):
            expected, expected_cache = decode(plain, token, expected_cache)
            logits, cache = step(model, token, cache)
            torch.testing.assert_close(logits, expected, **CLOSE)
            made.append(graphs())
    assert made[0] > 0
    assert made[-1] == made[7], f"graphs after each token: {made}"


@pytest.mark.parametrize("variant", ["atlas", "titans", "gated_deltanet", "mamba2"])
def test_a_decoded_token_is_one_graph_a_block(variant):
    """The memory's step is inside of it, as CUDA graphs need it; at a chunk's border, 128, too."""
    model, plain = build(variant), build(variant)
    ids = text(model, 2, 132)
    with torch.no_grad():
        expected = plain(ids).logits
        _, cache = decode(model, ids[:, :122], None)
        model.compile(backend="eager")
        for n, token in enumerate(ids[:, 122:].split(1, dim=1), 122):
            found, cache = decode(model, token, cache)
            torch.testing.assert_close(found[:, 0], expected[:, n], **CLOSE)
    assert graphs() > 0
    assert not counters["graph_break"], dict(counters["graph_break"])


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize(("compiled", "made"), [(compiled_model, 1), (compiled_function, 3)])
def test_layers_that_are_alike_share_their_graphs(depth, compiled, made):
    model = build("transformer_plus", num_hidden_layers=depth).float().train()
    gradients(model, compiled(loss, model, "aot_eager"), text(model, 2, 17))
    assert graphs() == made  # the block; around everything also the last norm and the loss
