"""Our models beside the code of others: same weights or same inputs, same numbers."""

import pytest
import torch
import torch.nn.functional as F
from models import build, logits, text
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from atlas_memory.family import DEEP_TRANSFORMER, GATED_DELTANET
from atlas_memory.layers.mamba2 import Mamba2
from atlas_memory.memory import DotProduct, Exponential, Gates, Matrix, MemorySpec, NoRetention
from atlas_memory.memory.memorize import memorize

LLAMA_NAMES = {
    "mixer_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mixer": "self_attn",
}


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def llama_like(model):
    """transformers' Llama with the weights of our transformer_plus."""
    ours = model.config
    config = LlamaConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_hidden_layers,
        num_attention_heads=ours.num_attention_heads,
        rms_norm_eps=ours.rms_norm_eps,
        tie_word_embeddings=ours.tie_word_embeddings,
    )
    llama = LlamaForCausalLM(config).to(model.dtype).eval()
    weights = {
        ".".join(LLAMA_NAMES.get(part, part) for part in name.split(".")): x
        for name, x in model.state_dict().items()
    }
    llama.load_state_dict(weights)
    return llama


@pytest.mark.parametrize("tied", [True, False])
def test_transformer_plus_is_llama(tied):
    model = build("transformer_plus", tie_word_embeddings=tied).float()
    llama, ids = llama_like(model), text(model, 3, 45)
    torch.testing.assert_close(logits(model, ids), logits(llama, ids), rtol=1e-5, atol=1e-5)
    mask = torch.ones_like(ids)
    mask[1, :20], mask[2, :44] = 0, 0
    ours = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    theirs = llama.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    assert ours.tolist() == theirs.tolist()


def test_transformer_plus_has_the_loss_of_llama():
    model = build("transformer_plus").float()
    llama, ids = llama_like(model), text(model, 2, 30)
    labels = ids.masked_fill(ids % 3 == 0, -100)
    torch.testing.assert_close(model(ids, labels=labels).loss, llama(ids, labels=labels).loss)
    torch.testing.assert_close(
        model(ids, labels=labels, num_items_in_batch=7).loss,
        llama(ids, labels=labels, num_items_in_batch=7).loss,
    )


def test_gated_deltanet_is_that_of_transformers():
    b, h, t, d = 2, 3, 41, 8
    q, k = (F.normalize(draw(2, b, h, t, d)[i], dim=-1) for i in range(2))
    v, alpha, beta = draw(b, h, t, d), draw(b, h, t).sigmoid(), draw(1, b, h, t)[0].sigmoid()
    y, state = memorize(
        q, k, v, Gates(alpha=alpha, eta=beta), (q.new_zeros(h, d, d),), GATED_DELTANET
    )
    inputs = [x.transpose(1, 2).float() for x in (q, k, v, alpha.log(), beta)]
    theirs, last = torch_recurrent_gated_delta_rule(
        *inputs, initial_state=None, output_final_state=True
    )
    # Theirs divides q by sqrt(d) and keeps the state transposed.
    torch.testing.assert_close(y.float(), theirs.transpose(1, 2) * d**0.5, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.weights[0].float().mT, last, rtol=1e-4, atol=1e-5)


def test_mamba2_is_that_of_transformers():
    torch.manual_seed(0)
    layer, x = Mamba2(16, 4, state_size=8), draw(2, 51, 16).float()
    torch.testing.assert_close(layer(x)[0], layer.mixer(x), rtol=1e-5, atol=1e-5)


def test_deeptransformer_with_a_matrix_is_attention():
    q, k, v = (draw(3, 2, 2, 33, 8)[i] for i in range(3))
    spec = MemorySpec(
        features=Exponential(normalize=True),
        architecture=Matrix(),
        bias=DotProduct(),
        retention=NoRetention(),
        chunk=DEEP_TRANSFORMER.chunk,
    )
    y, _ = memorize(q, k, v, Gates(), (q.new_zeros(2, 8, 8),), spec)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
