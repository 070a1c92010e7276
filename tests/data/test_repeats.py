"""Windows that repeat a stretch, and random tokens that repeat: what they hold, and how often."""

import numpy as np
import pytest
import torch

from atlas_memory.data.repeats import LONGEST, SHORTEST, Primed, Reread
from atlas_memory.data.token_cache import Tokens
from atlas_memory.data.windows import Lanes, Shuffled


def text(length, starts=(0,)):
    return Tokens(np.arange(length, dtype=np.uint32), np.array(starts), length, "test")


def same(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


def test_a_share_of_the_windows_has_a_stretch_twice():
    plain = Shuffled(text(64 * 400), 64, seed=1, count=400)
    windows = Reread(plain, 0.25, seed=1)
    changed = [n for n in range(400) if not same(windows[n], plain[n])]
    assert 70 <= len(changed) <= 130
    gaps = []
    for n in changed:
        before, after = plain[n]["input_ids"], windows[n]["input_ids"]
        copied = (before != after).nonzero().flatten()
        first, size = int(copied[0]), len(copied)
        source = int((before == after[first]).nonzero())
        assert copied.tolist() == list(range(first, first + size))
        assert after[first : first + size].tolist() == before[source : source + size].tolist()
        assert source + size <= first
        assert 8 <= size <= 32
        gaps.append(first - source - size)
    assert len(set(gaps)) > 10


def test_every_label_is_the_next_token_of_what_is_read():
    windows = Reread(Shuffled(text(640), 64, seed=1, count=10), 1.0, seed=1)
    for n in range(10):
        assert windows[n]["labels"][1:].tolist() == windows[n]["input_ids"][1:].tolist()
        assert windows[n]["labels"][0] == -100


def test_no_border_of_documents_stands_between_a_stretch_and_its_copy():
    borders = range(0, 640, 5)
    plain = Shuffled(text(640, borders), 64, seed=1, count=10)
    windows = Reread(plain, 1.0, seed=1)
    assert (plain[0]["position_ids"] == 0).sum() > 1
    assert windows[0]["position_ids"].tolist() == list(range(64))


def test_a_lane_goes_on_where_it_was():
    windows = Reread(Lanes(text(640), 32, rows=2, count=20), 1.0, seed=1)
    assert windows[2]["position_ids"].tolist() == list(range(32, 64))


@pytest.mark.parametrize("seed", [0, 1])
def test_examples_are_functions_of_n(seed):
    def make():
        plain = Shuffled(text(6400), 64, seed=seed, count=20)
        return Primed(Reread(plain, 0.5, seed), 10, 64, 256, seed)

    one, two = make(), make()
    assert len(one) == 30
    assert all(same(one[n], two[n]) for n in reversed(range(30)))
    assert not same(one[0], one[1])


def test_another_seed_draws_other_examples():
    plain = Shuffled(text(6400), 64, seed=0, count=20)
    one, two = (Reread(plain, 1.0, seed) for seed in (0, 1))
    assert not all(same(one[n], two[n]) for n in range(20))


def test_random_tokens_repeat_and_only_repetitions_are_asked_for():
    examples = Primed([], 50, 256, 1000, seed=0)
    periods = set()
    for n in range(50):
        ids, labels = examples[n]["input_ids"], examples[n]["labels"]
        period = int((labels != -100).nonzero()[0])
        periods.add(period)
        assert torch.equal(ids[period:], ids[:-period])
        assert torch.equal(labels[period:], ids[period:])
        assert ids.max() < 1000
        assert len(ids) == 256
    assert min(periods) >= SHORTEST
    assert max(periods) <= LONGEST
    assert len(periods) > 10


def test_a_short_window_holds_two_rounds():
    example = Primed([], 1, 16, 256, seed=0)[0]
    assert torch.equal(example["input_ids"][:8], example["input_ids"][8:])


def test_text_comes_behind_the_priming():
    plain = Shuffled(text(640), 16, seed=0, count=5)
    examples = Primed(plain, 3, 16, 256, seed=0)
    assert same(examples[3], plain[0])
    assert same(examples[7], plain[4])
