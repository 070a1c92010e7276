"""MemoryLayer: one function whatever the cut, and finite whatever the input."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streams import stream

import atlas_memory as am
from atlas_memory.layers.memory_layer import MemoryLayer, MemoryLayerState
from atlas_memory.layers.mesa_layer import MesaLayer, MesaLayerState

DEEP = am.MemorySpec(architecture=am.MLP(expansion=2), bias=am.Huber(1.0), chunk=4)
LINEAR = am.MemorySpec(architecture=am.Matrix(), bias=am.DotProduct(), chunk=1)
ROWS = {
    "titans": replace(DEEP, optimizer=am.Momentum()),
    "yaad": DEEP,
    "omeganet": replace(DEEP, features=am.Polynomial(2), window=8),
    "dla": replace(DEEP, bias=am.DotProduct()),
    "moneta": replace(DEEP, bias=am.Lp(3.0), retention=am.LqRetention(4.0)),
    "memora": replace(DEEP, bias=am.L2(), retention=am.SoftmaxRetention()),
    "atlas": replace(DEEP, features=am.Elementwise(2), optimizer=am.Muon(period=4), window=8),
    "atlas_plus": replace(
        DEEP, architecture=am.GatedMLP(expansion=2), optimizer=am.Muon(period=4), window=8
    ),
}
EXACT = replace(
    DEEP, architecture=am.MLP(expansion=2, normalize=True), bias=am.L2(), output="online"
)
EXACT_ROWS = {
    "exact_titans": replace(EXACT, optimizer=am.Momentum()),
    "exact_omeganet": replace(EXACT, features=am.Polynomial(2), window=3),
    "exact_atlas": replace(
        EXACT, features=am.Elementwise(2), optimizer=am.Muon(period=4), window=3
    ),
    "exact_atlas_plus": replace(
        EXACT,
        architecture=am.GatedMLP(expansion=2, normalize=True),
        optimizer=am.Muon(period=2),
        window=6,
    ),
    "exact_hebbian": replace(EXACT, bias=am.DotProduct(), retention=am.FixedRetention(), window=2),
}
ROWS |= EXACT_ROWS
OTHERS = {
    "retnet": replace(LINEAR, retention=am.FixedRetention()),
    "gla": replace(LINEAR, retention=am.ChannelRetention()),
    "polysketch": replace(LINEAR, retention=am.NoRetention(), features=am.Sketch(degree=4, size=6)),
    "deltanet": replace(LINEAR, bias=am.L2(), retention=am.NoRetention()),
    "gated_deltanet": replace(
        LINEAR, bias=am.L2(), retention=am.ScalarRetention(before_gradient=True)
    ),
    "longhorn": replace(LINEAR, bias=am.L2(), optimizer=am.Implicit()),
    "ttt_linear": replace(LINEAR, bias=am.L2(), retention=am.NoRetention(), chunk=4),
    "ttt_mlp": replace(DEEP, bias=am.L2(), retention=am.NoRetention()),
    "gated_mlp": replace(
        DEEP, architecture=am.GatedMLP(expansion=2), optimizer=am.GradientDescent()
    ),
    "lp": replace(DEEP, bias=am.Lp(3.0)),
    "dot": replace(DEEP, features=am.Exponential(), window=3),
}
ALL = ROWS | OTHERS
DIM, HEADS = 8, 2


def layer_of(spec, dim=DIM, heads=HEADS, seed=0, **options):
    torch.manual_seed(seed)
    layer = MemoryLayer(dim, heads, spec, **options)
    for name, parameter in layer.named_parameters():
        if name.startswith(("gates", "write_gate")):
            parameter.data += 0.5 * torch.randn_like(parameter)
    return layer


def draw(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ---- one function ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cuts", [[1] * 13, [6, 7]], ids=["tokens", "halves"])
def test_any_cut_gives_the_same(name, cuts):
    layer, x = layer_of(ALL[name]).double(), draw(2, 13, DIM)
    whole, _ = layer(x)
    torch.testing.assert_close(stream(layer, x, cuts)[0], whole, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["titans", "atlas", "gla", "dot", *EXACT_ROWS])
def test_documents_and_padding_are_separate_rows(name):
    admission = name in ("exact_atlas", "exact_titans")
    layer, x = layer_of(ALL[name], admission=admission).double(), draw(2, 11, DIM)
    starts = torch.zeros(2, 11, dtype=torch.bool)
    starts[0, 5] = starts[1, 9] = True
    packed, state = layer(x, starts=starts, lengths=torch.tensor([11, 7]))
    torch.testing.assert_close(packed[:1, 5:], layer(x[:1, 5:])[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(packed[1:, :7], layer(x[1:, :7])[0], rtol=0, atol=1e-9)
    more = draw(2, 3, DIM, seed=2)
    after, _ = layer(more, state)
    alone, _ = layer(torch.cat([x[1:, :7], more[1:]], dim=1))
    torch.testing.assert_close(after[1:], alone[:, 7:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_gets_a_gradient_and_none_is_written(name):
    layer = layer_of(ALL[name])
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer(draw(2, 13, DIM).float())[0].square().sum().backward()
    assert [n for n, p in layer.named_parameters() if p.grad is None] == []
    after = layer.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_stop_gradient_is_the_specs():
    spec = replace(ROWS["titans"], stop_gradient=True)
    layer, same = layer_of(spec), layer_of(ROWS["titans"])
    x = draw(1, 9, DIM).float()
    torch.testing.assert_close(layer(x)[0], same(x)[0])
    for each in (layer, same):
        each(x)[0].square().sum().backward()
    ours, theirs = layer.projections.k_proj.weight.grad, same.projections.k_proj.weight.grad
    assert not torch.allclose(ours, theirs)


def test_coefficients_start_at_the_taylor_series():
    coefficients = layer_of(ROWS["omeganet"]).coefficients()
    torch.testing.assert_close(coefficients, torch.tensor([[1.0, 1.0, 0.5]] * HEADS))


def test_random_projections_are_saved():
    assert "sketch" in MemoryLayer(DIM, HEADS, OTHERS["polysketch"]).state_dict()


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="dim=9 and heads=2"):
        MemoryLayer(9, 2, DEEP)


# ---- the value's path --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deltanet", "exact_atlas"])
def test_the_value_goes_around_the_memory(name):
    """Read out is M(q) + D v: at D = 0 the layer without it, and v alone where it is far larger."""
    plain = layer_of(ALL[name]).double()
    layer, x = layer_of(ALL[name], value_path=True).double(), draw(2, 13, DIM)
    missing = layer.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["D"]
    assert bool((layer.D == 1).all())
    torch.nn.init.zeros_(layer.D)
    torch.testing.assert_close(layer(x)[0], plain(x)[0], rtol=0, atol=0)
    with torch.no_grad():
        layer.D.copy_(1e6 * draw(*layer.D.shape, seed=3))
    (_, _, v), _ = layer.projections(x, None, None, None)
    torch.testing.assert_close(layer(x)[0], layer.read_out(x, layer.D * v), rtol=0, atol=1e-4)
    torch.testing.assert_close(stream(layer, x, [6, 7])[0], layer(x)[0], rtol=0, atol=1e-8)


def test_a_model_keeps_its_value_path(tmp_path):
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 11}
    model = am.AtlasForCausalLM(am.AtlasConfig.from_variant("atlas_mag", value_path=True, **shape))
    D = model.get_submodule("model.layers.0.mixer.memory").D
    assert bool((D == 1).all())
    torch.nn.init.normal_(D)
    model.save_pretrained(tmp_path)
    again = am.AtlasForCausalLM.from_pretrained(tmp_path)
    tokens = torch.arange(11)[None]
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits, rtol=0, atol=0)
    assert torch.equal(again.get_submodule("model.layers.0.mixer.memory").D, D)


# ---- admission ---------------------------------------------------------------------------------


def test_admission_needs_a_retention_that_can_be_stopped():
    with pytest.raises(ValueError, match="FixedRetention"):
        MemoryLayer(DIM, HEADS, ALL["exact_hebbian"], admission=True)


@pytest.mark.parametrize("name", [*list(EXACT_ROWS)[:-1], "titans", "atlas", "gla"])
@pytest.mark.parametrize("cuts", [[1] * 13, [6, 7]], ids=["tokens", "halves"])
def test_admission_is_the_same_for_any_cut(name, cuts):
    layer, x = layer_of(ALL[name], admission=True).double(), draw(2, 13, DIM)
    whole, _ = layer(x)
    torch.testing.assert_close(stream(layer, x, cuts)[0], whole, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["exact_omeganet", "exact_atlas", "exact_atlas_plus", "omeganet"])
def test_what_is_not_admitted_leaves_the_memory_as_it_was(name):
    layer = layer_of(ALL[name], admission=True)
    x = draw(2, 29, DIM).float()
    _, before = layer(x[:, :8])
    with torch.no_grad():
        layer.write_gate.weight.zero_()
        layer.write_gate.bias.fill_(-9.0)
    _, after = layer(x[:, 8:], before)
    for old, new in zip(before.memory.weights, after.memory.weights, strict=True):
        assert torch.equal(old, new)


def test_a_shut_gate_still_learns():
    layer = layer_of(EXACT, admission=True)
    with torch.no_grad():
        layer.write_gate.bias.fill_(-9.0)
    layer(draw(2, 13, DIM).float())[0].square().sum().backward()
    assert layer.write_gate.weight.grad.abs().max() > 0


def test_a_layer_bounds_the_hidden_features():
    with pytest.raises(ValueError, match="needs normalize=True"):
        MemoryLayer(DIM, HEADS, replace(DEEP, bias=am.L2(), output="online"))


# ---- the state ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["titans", "atlas", "retnet", "dot", "exact_atlas"])
def test_state_is_saved_and_loaded(name, tmp_path):
    layer, x = layer_of(ALL[name], admission=name == "exact_atlas"), draw(2, 11, DIM).float()
    _, state = layer(x)
    state.save(tmp_path / "state")
    loaded = MemoryLayerState.load(tmp_path / "state")
    torch.testing.assert_close(layer(x, loaded)[0], layer(x, state)[0])
    assert loaded.num_bytes == state.num_bytes


def test_a_memory_alone_is_no_layer_state(tmp_path):
    _, state = layer_of(DEEP)(draw(1, 3, DIM).float())
    state.memory.save(tmp_path / "memory")
    with pytest.raises(ValueError, match=r"no conv\.tail"):
        MemoryLayerState.load(tmp_path / "memory")
    state.save(tmp_path / "layer")
    assert am.MemoryState.load(tmp_path / "layer").spec == DEEP


def test_rows_can_be_selected_and_the_graph_cut():
    layer, x = layer_of(DEEP), draw(3, 7, DIM).float()
    _, state = layer(x)
    assert not state.detach().memory.start[0].requires_grad
    forked, _ = layer(x[[2, 2]], state.select(torch.tensor([2, 2])))
    torch.testing.assert_close(forked, layer(x, state)[0][[2, 2]])


def test_the_state_does_not_grow():
    layer, x = layer_of(ROWS["atlas"]), draw(1, 50, DIM).float()
    assert layer(x)[1].num_bytes == layer(x[:, :3])[1].num_bytes


@pytest.mark.parametrize("name", ["titans", "atlas", "memora", "deltanet", "exact_atlas"])
def test_the_memory_is_float32_in_bfloat16(name):
    x = draw(2, 9, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer_of(ALL[name])(x.float())
    assert all(part.dtype == torch.float32 for part in state.memory.start)
    half, state = layer_of(ALL[name]).bfloat16()(x.bfloat16())
    assert all(part.dtype == torch.float32 for part in state.memory.start)
    assert half.dtype == torch.bfloat16
    assert torch.isfinite(half).all()
    assert torch.isfinite(y).all()


# ---- Mesa --------------------------------------------------------------------------------------


def test_mesa_any_cut_gives_the_same(tmp_path):
    torch.manual_seed(0)
    layer, x = MesaLayer(DIM, HEADS).double(), draw(2, 13, DIM)
    whole, state = layer(x)
    torch.testing.assert_close(stream(layer, x, [1, 5, 7])[0], whole, rtol=0, atol=1e-9)
    state.save(tmp_path / "mesa")
    again, _ = layer(x, MesaLayerState.load(tmp_path / "mesa"))
    torch.testing.assert_close(again, layer(x, state)[0])


def test_mesa_refuses_another_file(tmp_path):
    _, state = layer_of(DEEP)(draw(1, 3, DIM).float())
    state.save(tmp_path / "layer")
    with pytest.raises(ValueError, match="not G, H"):
        MesaLayerState.load(tmp_path / "layer")


# ---- stability ---------------------------------------------------------------------------------

WIDTH = 8
# Largest steps, and nothing or everything forgotten.
OPEN = {"eta": 9.0, "alpha": 20.0, "theta": 9.0, "gamma": 9.0, "hidden": 9.0}
CLOSED = {"eta": 9.0, "alpha": -20.0, "theta": -9.0, "gamma": -9.0, "hidden": 9.0}
TEXT = (Path(__file__).parents[2] / "docs/paper.md").read_bytes()


def with_gates(spec, gates):
    layer = layer_of(spec, dim=WIDTH, heads=1)
    if gates is None:
        return layer
    with torch.no_grad():
        layer.gates.weight.zero_()
        for name, bias in layer.gates._split(layer.gates.bias).items():
            bias.fill_(gates[name])
    return layer


def hard_inputs(tokens):
    """One token forever, a new one every 64, text, noise; some of them at 1e4 and at 1e-4."""
    table = draw(256, WIDTH, seed=3).float()
    time = torch.arange(tokens)
    text = torch.tensor(list(TEXT * (tokens // len(TEXT) + 1)))[:tokens]
    noise = torch.randint(256, (tokens,), generator=torch.Generator().manual_seed(4))
    once = torch.stack([table[index] for index in (time * 0, time // 64 % 256, text, noise)])
    return torch.cat([once, 1e4 * once[:3], 1e-4 * once[:1]])


def require_finite(layer, tokens, rows=slice(None), block=4096):
    state = None
    with torch.no_grad():
        for part in hard_inputs(tokens)[rows].split(block, dim=1):
            y, state = layer(part, state)
            assert torch.isfinite(y).all()
    for part in (*state.memory.start, *state.memory.start_momentum):
        assert part.isfinite().all()
    return state


def stale(name, chunk):
    """The row with chunk `chunk`; Muon steps once in it."""
    spec = replace(ROWS[name], chunk=64)
    if isinstance(spec.optimizer, am.Muon):
        spec = replace(spec, optimizer=am.Muon(period=chunk))
    return replace(spec, chunk=chunk)


@pytest.mark.parametrize("name", ROWS)
def test_100_000_tokens_stay_finite(name):
    """One token, and text; `test_extreme_gates_stay_finite` has the others."""
    require_finite(with_gates(stale(name, 64), None), 100_000, rows=[0, 2])


@pytest.mark.slow
@pytest.mark.parametrize("gates", [None, OPEN, CLOSED], ids=["default", "open", "closed"])
@pytest.mark.parametrize("name", ROWS)
def test_100_000_tokens_of_short_chunks_stay_finite(name, gates):
    require_finite(with_gates(stale(name, 16), gates), 100_000)


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("gates", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize("name", ROWS)
def test_extreme_gates_stay_finite(name, gates, chunk):
    require_finite(with_gates(stale(name, chunk), gates), 3_000)


@pytest.mark.parametrize("name", ["titans", "omeganet", "yaad", "dla"])
def test_a_deep_memory_never_outgrows_its_start(name):
    layer = with_gates(stale(name, 16), OPEN)
    start = max(weight.abs().max() for weight in layer.initial_weights())
    state = require_finite(layer, 6_000)
    assert max(part.abs().max() for part in state.memory.start) < 3 * start


@pytest.mark.parametrize("name", ["ttt_linear", "ttt_mlp", "gated_mlp", "lp", "dot", "longhorn"])
def test_other_memories_stay_finite(name):
    require_finite(with_gates(OTHERS[name], None), 1_000)


@pytest.mark.parametrize("gates", [None, OPEN], ids=["default", "open"])
@pytest.mark.parametrize("name", ROWS)
def test_gradients_through_a_thousand_repetitions_are_finite(name, gates):
    layer = with_gates(stale(name, 16), gates)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(hard_inputs(1_000))
    y.float().square().mean().backward()
    assert [n for n, p in layer.named_parameters() if not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("name", ROWS)
def test_gradients_after_a_long_stream_are_finite(name):
    layer = with_gates(stale(name, 64), None)
    state = require_finite(layer, 2_048).detach()
    y, _ = layer(hard_inputs(64), state)
    y.square().mean().backward()
    # W_0 has no part in a chunk that continues a state.
    grads = {n: p.grad for n, p in layer.named_parameters() if not n.startswith("weights")}
    assert [n for n, grad in grads.items() if not grad.isfinite().all()] == []


def test_mesa_stays_finite():
    torch.manual_seed(0)
    layer = MesaLayer(WIDTH, 1)
    with torch.no_grad():
        y, state = layer(hard_inputs(10_000))
    assert torch.isfinite(y).all()
    assert state.memory.G.isfinite().all()
