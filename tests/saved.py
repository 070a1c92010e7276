"""Folders with a small saved model and its tokenizer, as serving takes them."""

import torch
from models import config, shaken

from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.memory.tree import leaves
from atlas_memory.model import AtlasForCausalLM


def byte_model(variant="omeganet", dtype=torch.float32, seed=0, **overrides):
    """A narrow model of bytes with weights that are far from ties."""
    torch.manual_seed(seed)
    model = AtlasForCausalLM(config(variant, **{"vocab_size": 256, **overrides}))
    return shaken(model.to(dtype).eval(), seed)


def save_model(folder, model=None):
    (model or byte_model()).save_pretrained(folder)
    load_tokenizer("bytes").fast.save_pretrained(folder)
    return folder


def tensors_of(memory):
    """Every tensor of a memory, by its path."""
    return {"last": memory.last, "bits": memory.bits, **dict(leaves(memory.cache.states))}


def same(one, two):
    """Equal to the last bit."""
    a, b = tensors_of(one), tensors_of(two)
    return (
        one.position == two.position
        and a.keys() == b.keys()
        and all(torch.equal(a[name], b[name]) for name in a)
    )


def greedy(model, memory, prompts=None, tokens=8):
    """What follows, one list of tokens per row."""
    inputs = memory.inputs(prompts)
    ids = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return ids[:, inputs["input_ids"].shape[1] :].tolist()
