"""Memory files: the same memory comes back, and no other."""

import json

import pytest
import torch
from models import config
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved import byte_model, greedy, same

import atlas_memory as am
from atlas_memory.family import variants
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.reading.memory_file import inspect

TEXT = [*b"a text whose length is no multiple of anything"]


@pytest.fixture(scope="module")
def model():
    return byte_model()


@pytest.fixture
def file(model, tmp_path):
    am.read(model, [TEXT]).save(tmp_path / "book.memory")
    return tmp_path / "book.memory"


@pytest.mark.parametrize("variant", variants())
def test_what_is_loaded_is_what_was_saved(variant, tmp_path):
    torch.manual_seed(0)
    model = AtlasForCausalLM(config(variant)).eval()
    memory = am.read(model, [[1, 2, 3, 4, 5] * 7])
    memory.save(tmp_path / "memory")
    loaded = am.Memory.load(tmp_path / "memory", model)
    assert same(memory, loaded)
    assert greedy(model, loaded, [[6, 7]], tokens=2) == greedy(model, memory, [[6, 7]], tokens=2)


def test_a_memory_that_has_decoded_comes_back_too(model, tmp_path):
    memory = am.read(model, [TEXT])
    for token in (1, 2, 3):
        memory = am.read(model, [token], memory)
    memory.save(tmp_path / "memory")
    assert same(memory, am.Memory.load(tmp_path / "memory", model))


def test_one_token_and_many_rows(model, tmp_path):
    for memory in (am.read(model, [7]), am.read(model, [TEXT]).fork(3)):
        memory.save(tmp_path / "memory")
        assert same(memory, am.Memory.load(tmp_path / "memory", model))


def test_the_header_can_be_read_by_people(file):
    with safe_open(file, framework="pt") as opened:
        header, names = opened.metadata(), list(opened.keys())
    assert header["format"] == "atlas memory 2"
    assert header["position"] == str(len(TEXT))
    assert json.loads(header["model"])["precision"] == "float32"
    assert "layers.0.memory.start.0" in names
    assert "layers.1.conv.tail" in names


def test_writing_again_leaves_nothing_else_behind(file, model):
    am.read(model, [TEXT, TEXT]).save(file)
    assert [path.name for path in file.parent.iterdir()] == ["book.memory"]
    assert inspect(file).header["position"] == 2 * len(TEXT)


def truncated(file):
    file.write_bytes(file.read_bytes()[:-1])


def cut_in_the_header(file):
    file.write_bytes(file.read_bytes()[:100])


def emptied(file):
    file.write_bytes(b"")


def longer(file):
    file.write_bytes(file.read_bytes() + b"\0")


def one_bit_of_a_number(file):
    whole = bytearray(file.read_bytes())
    whole[-3] ^= 1
    file.write_bytes(whole)


def the_position(file):
    whole = file.read_bytes()
    told = f'"position":"{len(TEXT)}"'.encode()
    assert whole.count(told) == 1
    file.write_bytes(whole.replace(told, b'"position":"99"'))


def no_memory(file):
    save_file({"last": torch.zeros(1)}, file)


def without_checksum(file):
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        header = opened.metadata()
    save_file(tensors, file, {k: v for k, v in header.items() if k != "checksum"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "is no whole memory file"),
        (cut_in_the_header, "is no whole memory file"),
        (emptied, "is no whole memory file"),
        (longer, "is no whole memory file"),
        (one_bit_of_a_number, "was altered or damaged"),
        (the_position, "was altered or damaged"),
        (without_checksum, "was altered or damaged"),
        (no_memory, "is no memory file: its format is none"),
    ],
)
def test_a_damaged_file_is_refused(damage, message, file, model):
    damage(file)
    with pytest.raises(ValueError, match=f"book.memory {message}"):
        am.Memory.load(file, model)


def test_a_missing_file_and_a_place_that_cannot_be_written_to(model, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*nothing: No such file"):
        inspect(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"cannot write to .*nowhere/memory"):
        am.read(model, [TEXT]).save(tmp_path / "nowhere" / "memory")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "book.memory belongs to another model: one with the same layers"),
        ({"variant": "titans"}, "belongs to another model: omeganet-.* made it, .* titans-"),
        ({"num_hidden_layers": 1}, "belongs to another model: omeganet-2x16x2-.* omeganet-1x16x2"),
        ({"dtype": torch.bfloat16}, "made in float32 and this model is in bfloat16"),
    ],
)
def test_a_memory_of_another_model_is_refused(other, message, file):
    with pytest.raises(ValueError, match=message):
        am.Memory.load(file, byte_model(**other))
