"""Small random models of the families that can be retrofitted, in float64."""

from functools import cache

import torch
from models import shaken
from transformers import AutoConfig, AutoModelForCausalLM

import atlas_memory as am

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 8},  # heads wider than the model
    "mistral": {"sliding_window": 6},  # a window of its own, smaller than ours
    "gemma": {"num_key_value_heads": 1},
}


def base(family, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family], **changes})
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def retrofitted(family="llama", **choices):
    """With parameters shaken, so that the gates are open and nothing is zero."""
    choices = {"layers": (0, 2), "window": 8, "sinks": 2, **choices}
    return shaken(am.retrofit(base(family), **choices))


@cache
def shared(family, **choices):
    """A model that several tests read; whoever changes it makes its own."""
    return retrofitted(family, **choices)
