"""Reading: any cut, any number of rows, any kind of block, one result."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import build, shared, text
from saved import byte_model, greedy, same

import atlas_memory as am
from atlas_memory.reading.read import read_blocks

FAMILY = ["atlas", "omeganet", "titans", "atlas_mag", "gated_deltanet_h2", "transformer_plus"]


def last_of(blocks):
    *_, last = blocks
    return last


def cut(ids, *sizes):
    return ids.split([*sizes, ids.shape[-1] - sum(sizes)], dim=-1)


@pytest.mark.parametrize("variant", ["atlas", "omeganet"])
@pytest.mark.parametrize("sizes", [(1,), (16,), (5, 1, 1, 0, 40), tuple([1] * 60)])
def test_where_the_text_is_cut_makes_no_difference_at_all(variant, sizes):
    model = byte_model(variant)
    ids = text(model, 1, 83)[0]
    whole = last_of(read_blocks(model, [ids], block=16))
    assert same(whole, last_of(read_blocks(model, cut(ids, *sizes), block=16)))


@pytest.mark.parametrize("variant", FAMILY)
@pytest.mark.parametrize("length", [2, 16, 17, 53])
def test_reading_is_the_forward_pass(variant, length):
    model = shared(variant)
    ids = text(model, 2, length)
    memory = last_of(read_blocks(model, [ids], block=16))
    with torch.no_grad():
        logits = model(ids).logits
        told = model(memory.last, past_key_values=memory.cache).logits[:, -1]
    torch.testing.assert_close(told, logits[:, -1], rtol=1e-8, atol=1e-9)
    bits = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:]) / np.log(2)
    assert memory.surprise == pytest.approx(float(bits), rel=1e-9)
    assert memory.position == length


@pytest.mark.parametrize("variant", FAMILY)
def test_reading_on_is_reading(variant):
    model = shared(variant)
    ids = text(model, 1, 61)
    whole = am.read(model, [ids])
    first = am.read(model, [ids[:, :23]])
    before = first.position, first.surprise
    both = am.read(model, [ids[:, 23:24], ids[:, 24:]], first)
    assert both.position == whole.position == 61
    assert both.surprise == pytest.approx(whole.surprise, rel=1e-9)
    assert greedy(model, both, [[3, 4]]) == greedy(model, whole, [[3, 4]])
    assert (first.position, first.surprise) == before


def test_generating_from_a_memory_is_generating_from_the_text():
    model = shared("atlas")
    ids, prompt = text(model, 1, 45), [7, 8, 9]
    whole = torch.cat([ids, torch.tensor([prompt])], dim=1)
    plain = {"attention_mask": torch.ones_like(whole), "pad_token_id": 0}
    expected = model.generate(whole, max_new_tokens=8, do_sample=False, **plain)
    assert greedy(model, am.read(model, [ids]), [prompt]) == expected[:, 48:].tolist()
    assert greedy(model, am.read(model, [whole])) == expected[:, 48:].tolist()


@pytest.mark.parametrize("variant", ["atlas", "omeganet"])
def test_32_questions_in_one_batch_are_32_separate_ones(variant):
    model = shared(variant)
    memory = am.read(model, [text(model, 1, 101)])
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 50, (1 + n % 7,), generator=generator).tolist() for n in range(32)]
    together = greedy(model, memory.fork(32), prompts, tokens=4)
    assert together == [greedy(model, memory, [prompt], tokens=4)[0] for prompt in prompts]
    assert len({tuple(answer) for answer in together}) > 8


def test_rows_are_read_side_by_side_and_taken_apart():
    model = shared("omeganet")
    ids = text(model, 3, 40)
    memory = am.read(model, cut(ids, 11))
    assert memory.rows == 3
    for row in range(3):
        alone, chosen = am.read(model, [ids[row]]), memory.select(torch.tensor([row]))
        assert chosen.surprise == pytest.approx(alone.surprise, rel=1e-9)
        assert greedy(model, chosen) == greedy(model, alone)


def test_any_kind_of_block():
    model = byte_model()
    ids = text(model, 1, 37)[0]
    plain = ids.tolist()
    expected = am.read(model, ids)
    assert same(expected, am.read(model, ids[None]))
    assert same(expected, am.read(model, plain))
    assert same(expected, am.read(model, [plain[:5], [], plain[5:]]))
    assert same(expected, am.read(model, np.array(plain, dtype=np.uint8)))
    assert same(expected, am.read(model, iter([np.array(plain, dtype=np.uint32)])))


def test_the_state_does_not_grow_and_no_token_is_kept():
    model = byte_model()
    ahead, sizes = [], []

    def endless():
        for n in range(40):
            ahead.append(n)
            yield torch.full((16,), n)

    for done, memory in enumerate(read_blocks(model, endless(), block=16), start=1):
        sizes.append(memory.num_bytes)
        assert len(ahead) <= done + 1
    assert len(set(sizes)) == 1
    assert memory.position == 640


def test_a_model_of_bfloat16_reads():
    model = byte_model(dtype=torch.bfloat16)
    memory = am.read(model, text(model, 1, 50))
    assert memory.model.precision == "bfloat16"
    assert 0 < memory.surprise < 20


def other_model():
    return am.read(byte_model(seed=1), [[1, 2]])


@pytest.mark.parametrize(
    ("blocks", "memory", "message"),
    [
        ([], None, "there is no token to read"),
        ([[], torch.empty(1, 0)], None, "there is no token to read"),
        ([torch.rand(4)], None, r"a block of float32 \(4,\): give ids"),
        ([torch.ones(1, 2, 3).long()], None, r"\(1, 2, 3\): give ids \[t\] or \[rows, t\]"),
        ([torch.ones(2, 3).long(), torch.ones(3).long()], None, "a block has 1 rows, .* had 2"),
        ([[1, 2, 256, 3]], None, "token id 256 is not in the vocabulary"),
        ([[1, 2]], other_model, "the memory belongs to another model: one with the same layers"),
    ],
)
def test_bad_input_is_one_sentence(blocks, memory, message):
    with pytest.raises(ValueError, match=message):
        am.read(byte_model(), blocks, memory and memory())


def test_memories_of_other_layers_and_precisions_are_refused():
    memory = am.read(byte_model(), [[1, 2]])
    with pytest.raises(ValueError, match=r"belongs to another model: omeganet.*this is titans"):
        am.read(byte_model("titans"), [[1]], memory)
    with pytest.raises(ValueError, match="made in float32 and this model is in float64"):
        am.read(byte_model(dtype=torch.float64), [[1]], memory)


def test_forks_and_prompts_that_do_not_fit():
    memory = am.read(byte_model(), [[1, 2]])
    with pytest.raises(ValueError, match="cannot fork 1 rows into 0"):
        memory.fork(0)
    with pytest.raises(ValueError, match="cannot fork 2 rows into 3"):
        memory.fork(2).fork(3)
    with pytest.raises(ValueError, match=r"3 prompts for a memory of 1 rows.*fork\(3\)"):
        memory.inputs([[1], [2], [3]])
    with pytest.raises(ValueError, match="block=0"):
        last_of(read_blocks(build("omeganet"), [[1]], block=0))
