"""Rows that stand at different positions share a batch, and none of them notices."""

import pytest
import torch
from models import logits, shared, text

from atlas_memory.cache import AtlasCache
from atlas_memory.family import variants

LENGTHS = (1, 7, 33)


@torch.no_grad()
def feed(model, ids, cache=None):
    out = model(ids, past_key_values=cache, use_cache=True)
    return out.logits[:, -1], out.past_key_values


def step(model, cache, token):
    return feed(model, torch.full((cache.batch_size, 1), token), cache)


@pytest.mark.parametrize("variant", variants())
def test_joined_rows_go_on_as_if_alone(variant):
    model = shared(variant)
    caches = [feed(model, text(model, 1, n, seed=n))[1] for n in LENGTHS]
    caches[1] = step(model, caches[1], 5)[1]  # one of them has decoded before
    joined = AtlasCache.join(caches)
    for token in (3, 4, 3):
        found, joined = step(model, joined, token)
        alone = [step(model, cache, token) for cache in caches]
        caches = [cache for _, cache in alone]
        torch.testing.assert_close(found, torch.cat([x for x, _ in alone]), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("variant", ["atlas", "omeganet", "titans", "gated_deltanet"])
def test_joined_rows_cross_borders_one_by_one(variant):
    """Rows open chunks, at 128, and step with Muon at tokens of their own; the rest is inside."""
    model, count = shared(variant), 20
    texts = [text(model, 1, n + count, seed=n) for n in (110, 115, 124)]
    expected = torch.cat([logits(model, ids)[:, -count:] for ids in texts])
    joined = AtlasCache.join([feed(model, ids[:, :-count])[1] for ids in texts])
    tokens = torch.cat([ids[:, -count:] for ids in texts])
    for n, token in enumerate(tokens.split(1, dim=1)):
        found, joined = feed(model, token, joined)
        torch.testing.assert_close(found, expected[:, n], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("variant", ["atlas", "transformer_plus", "dot", "samba", "mesa"])
def test_rows_come_and_go(variant):
    """What a batch-mate left behind changes nothing for a row, and is not kept for ever."""
    model = shared(variant)
    long, short, late = (text(model, 1, n, seed=n) for n in (40, 5, 9))
    batch = AtlasCache.join([feed(model, long)[1], feed(model, short)[1]])
    _, batch = step(model, batch, 2)
    batch = AtlasCache.join([batch.select(torch.tensor([1])), feed(model, late)[1]])
    found, batch = step(model, batch, 3)
    expected = [
        logits(model, torch.cat([short, torch.tensor([[2, 3]])], dim=1))[:, -1],
        logits(model, torch.cat([late, torch.tensor([[3]])], dim=1))[:, -1],
    ]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-9, atol=1e-10)
    fresh = AtlasCache.join([feed(model, late)[1], feed(model, late)[1]])
    assert batch.num_bytes <= 1.3 * fresh.num_bytes


def test_one_cache_joined_alone_is_itself():
    model = shared("omeganet")
    cache = feed(model, text(model, 2, 6))[1]
    joined = AtlasCache.join([cache])
    assert (joined.seen, joined.batch_size, joined.num_bytes) == (6, 2, cache.num_bytes)
