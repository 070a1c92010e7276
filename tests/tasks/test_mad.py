"""MAD's generators: the drawn examples of their docstrings, oracles, and the sheet's statistics."""

import re

import numpy as np
import pytest

from atlas_memory.tasks import mad
from atlas_memory.tasks.mad import (
    BASELINE,
    IGNORED,
    TASKS,
    Compression,
    FuzzyRecall,
    InContextRecall,
    Memorization,
    SelectiveCopying,
)


def written(task, which=0):
    """The `which`-th example of a docstring, as text."""
    found = re.findall(r"inputs +(.*)\n +targets +(.*)\n", type(task).__doc__)
    return found[which]


@pytest.mark.parametrize(
    ("task", "which"),
    [
        (InContextRecall(8, 12), 0),
        (InContextRecall(16, 16, 8, 0.4), 1),
        (FuzzyRecall(8, 40), 0),
        (SelectiveCopying(8, 12, 3), 0),
        (Compression(8, 8), 0),
        (Memorization(16, 8), 0),
    ],
)
def test_the_documented_example_is_drawn(task, which):
    inputs, targets = task.draw(np.random.default_rng(0), True)
    drawn = " ".join(map(str, inputs)), " ".join("." if y < 0 else str(y) for y in targets)
    assert drawn == written(task, which)


# ---- oracles: each knows the rules of its task, and sees the inputs alone -----------------------


def recalled(task, inputs):
    """What an already shown key makes known about the next token."""
    known, said = task.vocabulary - task.noise_vocabulary, np.full(len(inputs), IGNORED)
    values = {}
    for t, token in enumerate(inputs):
        if token < known // 2 and t % 2 == 0:
            said[t] = values.get(token, IGNORED)
            if t + 1 < len(inputs):
                values[token] = inputs[t + 1]
    return said


def fuzzily_recalled(task, inputs):
    """Runs of key tokens and of value tokens alternate; a value is said token by token."""
    half, said, values = (task.vocabulary - 1) // 2, np.full(len(inputs), IGNORED), {}
    key, value = (), ()
    for t, token in enumerate(inputs):
        if token == task.vocabulary - 1:
            continue
        if token < half:
            if value:
                values[key] = value
                key, value = (), ()
            key = (*key, token)
        else:
            value = (*value, token)
        known = values.get(key, ())
        if len(key) == task.longest and len(value) < len(known):
            said[t] = known[len(value)]
    return said


def copied(task, inputs):
    copy, blank = task.vocabulary - 1, task.vocabulary - 2
    end = list(inputs).index(copy)
    said = np.full(len(inputs), IGNORED)
    said[-task.copied :] = [token for token in inputs[:end] if token != blank]
    return said


def memorized(task, inputs):
    said = np.full(len(inputs), IGNORED)
    said[1::2] = task.values[inputs[0::2]]
    return said


ORACLES = {
    "in_context_recall": recalled,
    "noisy_recall": recalled,
    "fuzzy_recall": fuzzily_recalled,
    "selective_copying": copied,
    "compression": lambda task, inputs: inputs,
    "memorization": memorized,
}


@pytest.mark.parametrize("name", TASKS)
def test_the_oracle_solves_it(name):
    """Every label, but for the probe of fuzzy recall where it was never shown."""
    task = BASELINE[name]
    inputs, targets = mad.draws(task, np.random.default_rng(0), 200, test=True)
    said = np.stack([ORACLES[name](task, row) for row in inputs])
    asked = targets != IGNORED
    wrong = (said != targets) & asked
    if name == "fuzzy_recall":
        unknown = wrong.any(axis=1)
        assert 0 < unknown.mean() < 0.08
        # all that is missing is the value of the last key, of which nothing was seen before
        assert not wrong[:, : -task.longest].any()
        assert (said[wrong] == IGNORED).all()
        return
    assert not wrong.any()
    assert (said == targets).all()


@pytest.mark.parametrize("name", TASKS)
def test_shapes_ranges_and_seeds(name):
    task = BASELINE[name]
    (one, targets), (two, _) = mad.splits(task, 5, 5)
    shifted = name in ("in_context_recall", "noisy_recall")
    assert one.shape == targets.shape == (5, task.length - shifted)
    assert one.min() >= 0
    assert one.max() < task.vocabulary
    again = mad.splits(task, 5, 5)
    assert (again[0][0] == one).all()
    assert (again[1][0] == two).all()
    assert not (mad.splits(task, 5, 5, seed=1)[0][0] == one).all()


def test_recall_trains_on_every_next_token_and_tests_on_known_values():
    task = InContextRecall()
    (inputs, targets), (probe, asked) = mad.splits(task, 50, 400)
    assert (targets[:, :-1] == inputs[:, 1:]).all()
    assert (asked[:, 1::2] == IGNORED).all()
    # a key is new with probability (7/8)^n in slot n, and the last one is always known
    known = (asked[:, 0::2] != IGNORED).mean(axis=0)
    expected = 1 - (7 / 8) ** np.arange(63)
    assert np.abs(known[:-1] - expected).max() < 0.1
    assert known[-1] == 1
    assert set(np.unique(probe[:, 0::2])) == set(range(8))
    assert set(np.unique(probe[:, 1::2])) == set(range(8, 16))


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_the_share_of_noise(share):
    task = InContextRecall(32, 128, 16, share)
    inputs, targets = mad.draws(task, np.random.default_rng(0), 300, test=True)
    noise = inputs >= 16
    assert (noise[:, 0:-1:2] == noise[:, 1::2]).all()
    # one slot of 64 is protected, and one of these times it is the last, which is no slot
    assert noise[:, 0:-1:2].mean() == pytest.approx(share * 63 / 64, abs=0.02)
    assert (targets[noise] == IGNORED).all()


def test_fuzzy_motifs():
    task = FuzzyRecall()
    (inputs, targets), (probes, asked) = mad.splits(task, 300, 300)
    assert (targets[:, :-1] == inputs[:, 1:]).all()
    runs = {True: [], False: []}
    for test, rows in ((False, inputs), (True, probes)):
        for row in rows:
            keys = "".join("k" if x < 7 else "v" if x < 15 else "p" for x in row)
            assert re.fullmatch(r"p*(k{1,3}v{1,3})+k{0,3}v{0,3}", keys)
            runs[test] += [len(run) for run in re.findall("k+(?=v)", keys)]
    assert set(runs[True]) == {3}
    assert np.bincount(runs[False])[1:] / len(runs[False]) == pytest.approx([1 / 3] * 3, abs=0.03)
    assert (probes[:, 0] == 15).mean() > 0.5
    assert set(np.unique(asked)) == {IGNORED, *range(7, 15)}


def test_selective_copying_ends_with_content_before_the_copy_token():
    task = SelectiveCopying()
    inputs, targets = mad.draws(task, np.random.default_rng(0), 100, test=True)
    copy = 256 - 17
    assert (inputs[:, copy] == 15).all()
    assert (inputs[:, copy - 1] < 14).all()
    assert (inputs[:, copy + 1 :] == 14).all()
    assert ((inputs < 14).sum(axis=1) == 16).all()
    assert ((targets != IGNORED).sum(axis=1) == 16).all()


def test_memorization_is_one_map_that_not_all_of_train_shows():
    """At V = 8192 a third of the keys is never trained on: the ladder's mean has a ceiling."""
    ceilings = []
    for changes in mad.settings("memorization"):
        task = mad.task("memorization", changes)
        assert len(set(task.values)) == len(task.values) == (task.vocabulary - 1) // 2
        assert task.values.min() >= (task.vocabulary - 1) // 2
        (train, _), (test, targets) = mad.splits(task, 256)
        assert ((targets != IGNORED).sum(axis=1) == 16).all()
        ceilings.append(np.isin(test[:, 0::2], train[:, 0::2]).mean())
    assert ceilings == pytest.approx([1, 1, 1, 0.98, 0.865, 0.63], abs=0.02)
    assert np.mean(ceilings) == pytest.approx(0.913, abs=0.005)


def test_the_ladder_has_66_settings():
    counts = [len(mad.settings(name)) for name in TASKS]
    assert counts == [11, 14, 11, 13, 11, 6]
    assert sum(counts) == 66
    for name in TASKS:
        for changes in mad.settings(name):
            inputs, _ = mad.task(name, changes).draw(np.random.default_rng(1), True)
            assert inputs.max() < mad.task(name, changes).vocabulary
