"""A prefix that was read before is not read again, and nothing else is different."""

import pytest
import torch
from saved import byte_model, greedy, same

import atlas_memory as am
from atlas_memory.memory.tree import leaves
from atlas_memory.reading.read import read_blocks
from atlas_memory.reading.recent import Recent

TEXT = [*b"Call me Ishmael. Some years ago, never mind how long precisely, " * 3]


def read_anew(model, ids, block=16):
    *_, memory = read_blocks(model, [ids], block=block)
    return memory


@pytest.mark.parametrize("variant", ["atlas", "omeganet", "gated_deltanet", "samba", "dot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_bit_is_that_of_reading_anew(variant, dtype):
    model = byte_model(variant, dtype)
    prefixes = am.PrefixCache(model, block=16)
    for ids in (TEXT[:100], TEXT[:100], TEXT[:70] + [0] * 40, TEXT[:17], TEXT[:33], TEXT[:1]):
        assert same(prefixes.read(ids), read_anew(model, ids))
    assert prefixes.reused == 97 + 65 + 17 + 33
    assert greedy(model, prefixes.read(TEXT[:90])) == greedy(model, am.read(model, [TEXT[:90]]))


def test_bytes_stay_below_the_bound():
    model = byte_model()
    size = read_anew(model, TEXT[:17]).num_bytes
    prefixes = am.PrefixCache(model, max_bytes=3 * size + 1, block=16)
    for start in range(8):
        assert same(prefixes.read(TEXT[start : start + 90]), read_anew(model, TEXT[start:][:90]))
        assert prefixes.num_bytes <= 3 * size + 1
    prefixes.reused = 0
    prefixes.read(TEXT[7:97])
    assert prefixes.reused == 81  # the latest ones are still there
    assert "3 prefixes" in repr(prefixes)
    none = am.PrefixCache(model, max_bytes=0, block=16)
    none.read(TEXT)
    assert (none.num_bytes, none.read(TEXT[:40]).position, none.reused) == (0, 40, 0)


def test_kept_states_hold_no_larger_tensors():
    """A view of a long block would keep all of it alive and not be counted."""
    prefixes = am.PrefixCache(byte_model("transformer_plus"), block=16)
    prefixes.read(TEXT)
    for memory in prefixes._known._values.values():
        tensors = [tensor for _, tensor in leaves(memory.cache.states)]
        assert sum(t.untyped_storage().nbytes() for t in tensors) == memory.cache.num_bytes


def test_weights_that_have_changed_are_another_model():
    model = byte_model()
    prefixes = am.PrefixCache(model, block=16)
    prefixes.read(TEXT)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.1)
    assert same(prefixes.read(TEXT), read_anew(model, TEXT))
    assert prefixes.reused == 0


def test_mistakes():
    with pytest.raises(ValueError, match="block=0: give at least 0 bytes and blocks of 1"):
        am.PrefixCache(byte_model(), block=0)
    with pytest.raises(ValueError, match="no token to read"):
        am.PrefixCache(byte_model()).read([])


def test_least_recently_used_goes_first():
    class Ten:
        num_bytes = 10

    recent = Recent(30)
    for key in "abc":
        recent.put(key, Ten())
    recent.get("a")
    recent.put("d", Ten())
    assert [key for key in "abcd" if recent.get(key)] == ["a", "c", "d"]
    recent.put("a", Ten())
    assert (len(recent), recent.num_bytes) == (3, 30)
