"""Training a retrofitted model: what moves, how fast, how it goes on, and from how many."""

import json
import shutil

import pytest
import small_runs as runs
import torch
from bases import base
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import atlas_memory as am
from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.training import checkpoints
from atlas_memory.training.prepare import prepare
from atlas_memory.training.retrofit import further, part_of
from atlas_memory.training.retrofit_trainer import divergence

SMALL = {name: None for name in runs.SMALL if name.startswith("model.") and "memory" not in name}
SMALL = {name.replace(".", "__"): value for name, value in SMALL.items()}
SMALL |= {"retrofit__layers": "[0, 2]", "retrofit__window": 8, "retrofit__sinks": 2}


@pytest.fixture
def text(tmp_path):
    return runs.write_text(tmp_path / "text")


@pytest.fixture
def folder(tmp_path):
    """A base of bytes with its tokenizer, as one lies on a disk."""
    model = base("llama", torch.float32, vocab_size=256, tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "base")
    load_tokenizer("bytes").fast.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def options(folder, **changes):
    return {**SMALL, "retrofit__base": json.dumps(str(folder)), **changes}


MODES = {
    "memory": {"gate", "memory"},
    "lora": {"gate", "memory", "lora"},
    "everything": {"gate", "memory", "base"},
}


@pytest.mark.parametrize("train", MODES)
def test_only_what_is_trained_moves(tmp_path, text, folder, train):
    lora = {"retrofit__lora": 2} if train == "lora" else {}
    changes = options(folder, retrofit__train=train, **lora)
    started = prepare(runs.recipe(text, **changes), print).start
    before = {name: x.clone() for name, x in started.state_dict().items()}
    runs.train(text, tmp_path / "run", **changes)
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    assert list(after) == list(before)
    for name, x in after.items():
        moved = not torch.equal(x, before[name])
        assert moved == (part_of(name) in MODES[train]), name


def test_memories_may_start_from_the_text(text, folder):
    changes = options(folder, retrofit__calibrate=256)
    model = prepare(runs.recipe(text, **changes), print).start
    for _, part in model.memories():
        maps = part.memory.projections
        assert torch.equal(maps.q_proj.weight, maps.k_proj.weight)
        assert not part.gate.any()


def test_each_part_has_its_rate(tmp_path, text, folder):
    from atlas_memory.training.run import _trainer
    from atlas_memory.training.run_folder import RunFolder

    changes = options(folder, retrofit__train="everything", retrofit__lora=2)
    changes |= {"retrofit__gate_rate": 20.0, "retrofit__base_rate": 0.5}
    prepared = prepare(runs.recipe(text, **changes), print)
    trainer, _ = _trainer(prepared, RunFolder(tmp_path / "run"), print)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    rates = {"gate": 20.0, "memory": 1.0, "lora": 1.0, "base": 0.5}
    counted = 0
    for group in trainer.create_optimizer().param_groups:
        for parameter in group["params"]:
            part = part_of(names[id(parameter)])
            assert group["lr"] == pytest.approx(1e-2 * rates[part])
            decays = parameter.ndim == 2 and "embed" not in names[id(parameter)]
            assert (group["weight_decay"] > 0) == decays or part == "memory"
            counted += 1
    assert counted == len(names)


def test_it_goes_on_exactly(tmp_path, text, folder):
    """Streamed, in bfloat16 with a frozen base, from a checkpoint in the middle."""
    changes = options(folder, train__stream=True, train__precision="bfloat16")
    runs.train(text, tmp_path / "whole", **changes)
    runs.train(text, tmp_path / "cut", **changes)
    for checkpoint in checkpoints.checkpoints(tmp_path / "cut" / "checkpoints"):
        if checkpoints.step_of(checkpoint) > 2:
            shutil.rmtree(checkpoint)
    (tmp_path / "cut" / "result.json").unlink()
    shutil.rmtree(tmp_path / "cut" / "model")
    runs.train(text, tmp_path / "cut", resume=True, **changes)
    assert runs.losses(tmp_path / "cut") == runs.losses(tmp_path / "whole")
    assert runs.same(runs.weights(tmp_path / "cut", 6), runs.weights(tmp_path / "whole", 6))


def test_a_retrofitted_folder_is_trained_further(tmp_path, text, folder):
    """What a run leaves is a start again, with its tokenizer."""
    runs.train(text, tmp_path / "first", **options(folder))
    again = options(tmp_path / "first", retrofit__lora=2, retrofit__train="lora")
    del again["retrofit__layers"]
    runs.train(text, tmp_path / "second", **again)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "second" / "model")
    assert (model.config.layers, model.config.lora, model.config.window) == ([0, 2], 2, 8)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "second" / "model")
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_a_run_goes_on_under_the_name_of_its_memory(tmp_path, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    am.retrofit(model, "gated_deltanet", layers=(0,)).save_pretrained(tmp_path / "run" / "model")
    assert further(tmp_path / "run")["model"] == {"variant": "gated_deltanet"}


def test_distillation_brings_the_model_closer_to_its_base(tmp_path, text, folder):
    plain = AutoModelForCausalLM.from_pretrained(folder)
    shaken = {n: p + 0.3 * torch.randn_like(p) for n, p in plain.state_dict().items()}
    plain.load_state_dict(shaken)
    plain.save_pretrained(folder)
    changes = options(folder, retrofit__distil=60, train__steps=60, data__length=32)
    runs.train(text, tmp_path / "run", **changes)
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    windowed = am.retrofit(am.base_of(trained), layers=(), window=8, sinks=2).eval()
    ids = torch.tensor([list(b"the memory reads a word and keeps what it can of")])
    with torch.no_grad():
        theirs = am.base_of(trained)(ids).logits
        near, far = (divergence(m(ids).logits, theirs) for m in (trained, windowed))
    assert near < 0.97 * far


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one(tmp_path, text, folder, home, parallel):
    changes = options(folder, train__steps=8, train__save_every=4)
    runs.train(text, tmp_path / "one", **changes)
    given = runs.set_options(text, **changes, train__parallel=parallel)
    two = tmp_path / "two"
    done = runs.atlas("train", "--output", two, *given, home=home, processes=2)
    assert done.returncode == 0, done.stderr
    assert runs.losses(two) == pytest.approx(runs.losses(tmp_path / "one"), abs=1e-4)
    kept = load_file(two / "model" / "model.safetensors")
    alone = load_file(tmp_path / "one" / "model" / "model.safetensors")
    assert kept.keys() == alone.keys()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"retrofit__train": "gates"}, r"retrofit.train='gates' is unknown; .*memory, lora"),
        ({"retrofit__layers": "[9]"}, r"layers=\[9\]"),
        ({"retrofit__layers": '["a"]'}, "whole numbers"),
        ({"retrofit__base": '"nowhere"'}, r"'nowhere' cannot be loaded .* needs a network"),
        ({"retrofit__base": '"no.gguf"'}, "there is no file no.gguf"),
        ({"retrofit__distil": 2, "train__parallel": "fsdp"}, "retrofit.distil needs"),
        ({"model__hidden_size": 32}, "model.hidden_size=32: the base decides it"),
        ({"compare": "mamba"}, "compared with itself"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(tmp_path, text, folder, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        runs.train(text, tmp_path / "run", **options(folder, **changes))
    assert not (tmp_path / "run").exists()
