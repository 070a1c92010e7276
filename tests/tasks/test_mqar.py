"""MQAR's generator: the drawn example, an oracle, and Zoology's law of gaps."""

import re

import numpy as np
import pytest

from atlas_memory.tasks.mqar import IGNORED, MQAR
from atlas_memory.tasks.recall import Recall


def test_the_documented_example_is_drawn():
    inputs, targets = MQAR(16, 16, 3).draw(np.random.default_rng(0))
    written = re.search(r"inputs +(.*)\n +targets +(.*)\n", MQAR.__doc__).groups()
    drawn = " ".join(map(str, inputs)), " ".join("." if y < 0 else str(y) for y in targets)
    assert drawn == written


@pytest.mark.parametrize("fillers", [False, True])
@pytest.mark.parametrize("shape", [(64, 32, 8), (8192, 64, 4), (128, 33, 5), (20, 36, 9)])
def test_the_oracle_recalls_everything(shape, fillers):
    vocabulary, _, pairs = shape
    task = MQAR(*shape, random_fillers=fillers)
    inputs, targets = task.draws(100, (7,))
    assert ((targets != IGNORED).sum(axis=1) == pairs).all()
    assert (targets[:, : 2 * pairs] == IGNORED).all()
    for row, asked in zip(inputs, targets, strict=True):
        values = dict(zip(row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        assert len(values) == pairs
        assert len(set(values.values())) == pairs
        places = np.flatnonzero(asked != IGNORED)
        assert [values[key] for key in row[places]] == asked[places].tolist()
        assert sorted(row[places]) == sorted(values)
        assert 1 <= min(values) <= max(values) < vocabulary // 2 <= min(values.values())
        assert (places % 2 == 0).all()
    unasked = (targets == IGNORED) & (np.arange(task.length) >= 2 * pairs)
    assert (inputs[unasked].max() > 0) == fillers


def slot_of_key(task, n, count=3_000):
    inputs, _ = task.draws(count, (1,))
    tail = inputs[:, 2 * task.pairs :]
    return np.argmax(tail == inputs[:, 2 * n, None], axis=1) // 2


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_the_first_key_is_asked_for_by_the_law(power):
    """P(slot g) = (g + 1)^(a - 1) / sum: 1/(g + 1) for a = 0.01, uniform for a = 1."""
    task = MQAR(128, 64, 4, power=power)
    slots = slot_of_key(task, 0)
    share = np.bincount(slots, minlength=task.slots) / len(slots)
    expected = np.arange(1, task.slots + 1) ** (power - 1)
    assert share == pytest.approx(expected / expected.sum(), abs=0.03)


def test_early_keys_are_asked_for_early():
    task = MQAR(128, 64, 8)
    assert slot_of_key(task, 0, 500).mean() < slot_of_key(task, 7, 500).mean() - 1


def test_examples_have_their_own_seeds():
    task = MQAR(128, 64, 8)
    whole, _ = task.draws(6, (1, 2))
    part, _ = task.draws(2, (1, 2), first=4)
    assert (whole[4:] == part).all()
    assert not (task.draws(6, (1, 3))[0] == whole).all()


def test_the_trainers_examples_are_the_same_task_shifted():
    example = Recall(length=32, pairs=4, vocab_size=64, seed=5, count=3)[1]
    ids, labels = example["input_ids"].numpy(), example["labels"].numpy()
    places = np.flatnonzero(labels != IGNORED) - 1
    values = dict(zip(ids[0:8:2], ids[1:8:2], strict=True))
    assert [values[key] for key in ids[places]] == labels[places + 1].tolist()


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((64, 32, 9), "pairs=9: it must be from 1 to a quarter of the length, 8"),
        ((64, 32, 0), "pairs=0: it must be from 1"),
        ((16, 64, 8), "pairs=8 does not fit half of a vocabulary of 16"),
    ],
)
def test_what_does_not_fit(shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        MQAR(*shape)
