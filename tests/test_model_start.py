"""Every parameter that no checkpoint gives starts as its module says, however a model is made."""

import pytest
import torch
import torch.nn.functional as F
from models import build, config
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights

from atlas_memory.family import variants
from atlas_memory.layers.gates import GateProjections
from atlas_memory.layers.mamba import Mamba
from atlas_memory.layers.mamba2 import Mamba2
from atlas_memory.layers.memory_as_context import FOCUS, MemoryAsContext
from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.layers.mesa_layer import MesaLayer
from atlas_memory.layers.projections import Projections, RMSNorm, designed_count
from atlas_memory.layers.shapes_only import ShapesOnly
from atlas_memory.memory import FixedRetention
from atlas_memory.model import AtlasForCausalLM, AtlasModel

KINDS = ["gated_deltanet", "gla", "polysketchformer", "titans", "atlas_plus", "retnet", "mesa"]
KINDS += ["atlas_mac", "atlas_mag", "atlas_mal", "samba", "gated_deltanet_h2", "mamba2"]
DESIGNED = {"all": 4, "half": 2, "none": 0}


def close(a, b, atol=1e-5):
    torch.testing.assert_close(a.detach(), torch.as_tensor(b).expand_as(a).to(a), rtol=0, atol=atol)


def promised_of_projections(module):
    """q and k the same map, q and v on this token, k on this and the one before."""
    dim = module.q_proj.weight.shape[0]
    chosen = module.designed
    assert torch.equal(module.k_proj.weight[:chosen], module.q_proj.weight[:chosen])
    taps = module.conv.weight.unflatten(0, (3, dim))
    close(taps[0::2, :chosen], torch.tensor([1.0, 0, 0, 0]))
    close(taps[1, :chosen], torch.tensor([0.5, 0.5, 0, 0]))
    assert not (module.k_proj.weight[chosen:] == module.q_proj.weight[chosen:]).any()
    assert (taps[:, chosen:].abs() <= 0.5).all()
    assert (taps[:, chosen:] != 0).all()


def promised_of_gates(module):
    """eta and theta in the middle, alpha near 1, gamma on the newest pair."""
    for name, bias in module._split(module.bias).items():
        bias = bias.unflatten(0, (module.heads, -1))
        if name == "gamma":
            close(bias[:, 0], 4.0)
            bias = bias[:, 1:]
        starts = {"eta": 0.0, "alpha": 6.0, "theta": 0.0, "gamma": -4.0, "hidden": -2.0}
        close(bias, starts[name])
    if isinstance(module.spec.retention, FixedRetention):
        close(module.decay, 1 - 2.0 ** (-5 - torch.arange(module.heads)))


def promised_of_answers(module):
    """Designed heads answer with the tokens that they wrote."""
    chosen = module.projections.designed
    written = module.projections.v_proj.weight
    answered = module.read_out.out_proj.weight.mT
    same = F.cosine_similarity(answered, written, dim=1)
    close(same[:chosen], 1.0)
    assert (same[chosen:] < 0.9).all()


def promised_of_memory(module):
    """The feature map's constants, an exact output from 0; the other W_0 are left to `alike`."""
    promised_of_answers(module)
    if module.spec.online:
        close(module.weights[0], 0.0)
    constants = module.spec.features.constants(module.head_dim)
    if constants is not None:
        close(module.coefficients(), constants)


def promised_of_context(module):
    """The memory alone: attention adds nothing, its q and k are one orthogonal map."""
    assert torch.equal(module.k_proj.weight, module.q_proj.weight)
    one = torch.eye(module.q_proj.weight.shape[0])
    close(module.q_proj.weight @ module.q_proj.weight.mT, FOCUS**2 * one)
    close(module.o_proj.weight, 0.0)


def promised_of_mesa(module):
    promised_of_answers(module)
    close(module.log_ridge, 0.0)
    close(module.bias, 6.0)


def promised_of_mamba(module):
    mixer = module.mixer
    steps = F.softplus(mixer.dt_proj.bias if isinstance(module, Mamba) else mixer.dt_bias)
    assert steps.min() >= 0.001 - 1e-6
    assert steps.max() <= 0.1 + 1e-6
    assert len(steps.unique()) > 1
    close(mixer.A_log.exp(), torch.arange(1.0, mixer.A_log.shape[-1] + 1), 1e-4)
    close(mixer.D, 1.0)
    if isinstance(module, Mamba2):
        close(mixer.norm.weight, 1.0)


PROMISES = {
    Projections: promised_of_projections,
    GateProjections: promised_of_gates,
    MemoryLayer: promised_of_memory,
    MemoryAsContext: promised_of_context,
    MesaLayer: promised_of_mesa,
    Mamba: promised_of_mamba,
    Mamba2: promised_of_mamba,
    RMSNorm: lambda module: close(module.weight, 1.0),
}


def alike(name, tensor, alone):
    """Of one distribution: mean and spread within what chance allows, constants the same."""
    spread, error = alone.std(correction=0), 6 * tensor.numel() ** -0.5
    mean = (tensor.mean() - alone.mean()).abs()
    assert mean <= error * spread * 1.5 + 1e-6, name
    assert (tensor.std(correction=0) - spread).abs() <= error * spread + 1e-6, name


def as_promised(model):
    """Every module is what its docstring says, and each tensor looks as in a layer alone."""
    body = getattr(model, "model", model)
    for module in model.modules():
        PROMISES.get(type(module), lambda _: None)(module)
    for mixer, block in zip(model.config.mixer_of_layer(), body.layers, strict=True):
        alone = mixer.build(model.config.width).state_dict()
        for name, tensor in block.mixer.state_dict().items():
            alike(name, tensor, alone[name])
        for part in block.mlp.children():
            alike("mlp", part.weight, nn.Linear(*part.weight.shape[::-1]).weight)
    embedded = body.embed_tokens.weight
    alike("embed_tokens", embedded, model.config.initializer_range * torch.randn(embedded.shape))


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("variant", variants())
@torch.no_grad()
def test_a_new_model(variant, size):
    torch.manual_seed(0)
    model = AtlasForCausalLM(config(variant, size))
    as_promised(model)
    torch.manual_seed(0)
    again = AtlasForCausalLM(config(variant, size)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def from_an_empty_checkpoint(given, folder):
    """All that a checkpoint of nothing but a norm leaves to the model."""
    given.save_pretrained(folder)
    save_file({"model.norm.weight": torch.ones(given.hidden_size)}, folder / "model.safetensors")
    return AtlasForCausalLM.from_pretrained(folder)


def from_meta(given, folder):
    with torch.device("meta"):
        model = AtlasForCausalLM(given)
    model.to_empty(device="cpu").init_weights()
    return model


def from_shapes(given, folder):
    with ShapesOnly():
        model = AtlasForCausalLM(given)
    model.to_empty(device="cpu").init_weights()
    return model


WAYS = {
    "from_config": lambda given, folder: AutoModelForCausalLM.from_config(given),
    "without a head": lambda given, folder: AtlasModel(given),
    "empty checkpoint": from_an_empty_checkpoint,
    "meta": from_meta,
    "shapes": from_shapes,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", KINDS)
@torch.no_grad()
def test_other_ways_to_a_model(variant, way, tmp_path):
    torch.manual_seed(0)
    as_promised(WAYS[way](config(variant, "tiny"), tmp_path))


@pytest.mark.parametrize("variant", KINDS)
@torch.no_grad()
def test_a_key_that_a_checkpoint_lacks(variant, tmp_path):
    build(variant).float().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    prefix, alone = "model.layers.0.mixer.", {}
    for lost in (name for name in whole if name.startswith(prefix)):
        save_file({name: x for name, x in whole.items() if name != lost}, path, {"format": "pt"})
        model = AtlasForCausalLM.from_pretrained(tmp_path)
        found = model.state_dict()
        assert all(torch.equal(found[name], x) for name, x in whole.items() if name != lost), lost
        alone = alone or fresh_layer(model)
        owner = model.get_submodule(lost.rpartition(".")[0].rpartition(".")[0])
        if lost.endswith("k_proj.weight") and isinstance(owner, Projections | MemoryAsContext):
            same = slice(0, getattr(owner, "designed", None))
            assert torch.equal(found[lost][same], owner.q_proj.weight[same])
        elif lost.endswith("o_proj.weight") and isinstance(owner, MemoryAsContext):
            assert (found[lost] == 0).all()
        else:
            alike(lost, found[lost], alone[lost.removeprefix(prefix)])


def fresh_layer(model):
    return model.config.mixer_of_layer()[0].build(model.config.width).state_dict()


@pytest.mark.parametrize("variant", KINDS)
def test_a_whole_checkpoint_is_the_model(variant, tmp_path):
    model = build(variant).float()
    model.save_pretrained(tmp_path)
    with no_init_weights():
        empty = AtlasForCausalLM(model.config)
    empty.load_state_dict(model.state_dict())
    for loaded in (empty, AtlasForCausalLM.from_pretrained(tmp_path)):
        found = loaded.state_dict()
        assert all(torch.equal(found[name], x) for name, x in model.state_dict().items())


@pytest.mark.parametrize("persistent", [0, 3])
@torch.no_grad()
def test_context_with_and_without_persistent_tokens(persistent):
    mixers = [{"mixer": "mac", "segment": 8, "persistent": persistent}]
    torch.manual_seed(0)
    as_promised(AtlasForCausalLM(config("atlas_mac", "tiny", mixers=mixers)))


@torch.no_grad()
def test_half_precision():
    model = AutoModelForCausalLM.from_config(config("atlas_mac", "tiny"), dtype=torch.bfloat16)
    for mixer in (block.mixer for block in model.model.layers):
        one = FOCUS**2 * torch.eye(mixer.q_proj.weight.shape[0])
        close((mixer.k_proj.weight @ mixer.q_proj.weight.mT).float(), one, atol=0.02)


@torch.no_grad()
def test_more_tokens_and_adapters_change_no_other_start():
    from peft import LoraConfig, get_peft_model

    model = AtlasForCausalLM(config("gated_deltanet", "tiny", tie_word_embeddings=False))
    rows = model.config.vocab_size
    model.resize_token_embeddings(rows + 100, mean_resizing=False)
    alike("new rows", model.model.embed_tokens.weight[rows:], 0.02 * torch.randn(100, 1000))
    get_peft_model(model, LoraConfig(target_modules=["v_proj"], r=2))
    assert all((p == 0).all() for name, p in model.named_parameters() if "lora_B" in name)
    for module in model.modules():
        PROMISES.get(type(module), lambda _: None)(module)


# A sliding window alone forgets by design.
@pytest.mark.parametrize("variant", [name for name in variants() if name != "swa"])
@torch.no_grad()
def test_the_first_token_reaches_the_last(variant):
    torch.manual_seed(0)
    model = AtlasForCausalLM(config(variant, "tiny")).double().eval()
    text = torch.randint(0, model.config.vocab_size, (1, 77))
    other = text.clone()
    other[0, 0] = (other[0, 0] + 1) % model.config.vocab_size
    last = [model(ids, logits_to_keep=1).logits for ids in (text, other)]
    assert (last[0] - last[1]).abs().max() > 1e-10


@pytest.mark.parametrize("variant", ["gated_deltanet", "mesa", "atlas_mac"])
@pytest.mark.parametrize("choice", DESIGNED)
@torch.no_grad()
def test_some_heads_are_designed(variant, choice):
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_attention_heads": 4, "designed_heads": choice}
    model = AtlasForCausalLM(config(variant, **shape))
    chosen = [m.designed for m in model.modules() if isinstance(m, Projections)]
    assert set(chosen) == {16 * DESIGNED[choice]}
    as_promised(model)


def test_an_odd_number_of_heads_and_a_wrong_choice(tmp_path):
    assert [designed_count(choice, 3) for choice in DESIGNED] == [3, 2, 0]
    with pytest.raises(ValueError, match=r"designed_heads='most'; choose from: all, half, none"):
        config("titans", designed_heads="most")
    with pytest.raises(ValueError, match=r"designed_heads='most'; choose from: all, half, none"):
        MemoryLayer(8, 2, config("titans").memory_spec, designed_heads="most")


def test_a_config_from_before_the_choice(tmp_path):
    given = config("titans", designed_heads="half")
    given.save_pretrained(tmp_path)
    assert type(given).from_pretrained(tmp_path).designed_heads == "half"
    path = tmp_path / "config.json"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "designed_heads" not in line))
    assert type(given).from_pretrained(tmp_path).designed_heads == type(given)().designed_heads
