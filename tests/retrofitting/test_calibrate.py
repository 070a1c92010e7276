"""A memory whose first maps were solved from a text recalls before it is trained."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import atlas_memory as am
from atlas_memory.memory import MemorySpec
from atlas_memory.retrofitting.build import variant_memory
from atlas_memory.retrofitting.calibrate import calibrate

PERIOD = 40  # tokens that come again beyond the window


def model() -> am.RetrofittedForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return am.retrofit(LlamaForCausalLM(config).eval(), layers=(1,), window=8, memory=polynomial())


def polynomial() -> MemorySpec:
    plain = variant_memory("gated_deltanet").to_dict()
    plain["features"] = {"name": "polynomial", "degree": 2}
    return MemorySpec.from_dict(plain)


def texts(count: int, length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(96, (length,), generator=generator) for _ in range(count)]


def test_shut_gates_leave_the_base_as_it_was() -> None:
    ours, ids = model(), torch.arange(30)[None]
    before = ours(ids).logits
    calibrate(ours, texts(4, 256))
    assert torch.equal(ours(ids).logits, before)


def test_a_trained_memory_is_left_alone() -> None:
    ours = model()
    for _, part in ours.memories():
        part.gate.data[3] = 0.1
    before = {name: x.clone() for name, x in ours.state_dict().items()}
    calibrate(ours, texts(4, 256))
    for name, x in ours.state_dict().items():
        assert torch.equal(x, before[name]), name


def test_an_open_gate_recalls_what_the_window_has_lost() -> None:
    ours = model()
    calibrate(ours, texts(16, 256))
    stretch = texts(1, PERIOD)[0]
    ids = torch.cat([stretch, stretch])[None]

    def right() -> float:
        said = ours(ids).logits.argmax(dim=-1)[:, PERIOD:-1]
        return float((said == ids[:, PERIOD + 1 :]).float().mean())

    assert right() < 0.1
    for _, part in ours.memories():
        part.gate.data.fill_(1.0)
    assert right() > 0.5


def test_what_was_never_read_is_answered_with_little() -> None:
    """A memory that always answers as loudly would talk into every text that holds nothing new."""
    ours = model()
    calibrate(ours, texts(16, 256))
    memory = ours.memories()[0][1].memory
    known, other = texts(1, PERIOD)[0], texts(2, PERIOD)[1]
    heard: list[torch.Tensor] = []
    memory.read_out.norm.register_forward_hook(lambda _, __, y: heard.append(y[:, PERIOD:]))
    with torch.no_grad():
        for second in (known, other):
            ours(torch.cat([known, second])[None])
    loud, quiet = (float(y.square().mean()) for y in heard)
    assert loud > 1.3 * quiet
