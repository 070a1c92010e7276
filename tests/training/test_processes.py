"""Two processes are one: same losses, sharded or not, and each goes on with the other's run."""

import pytest
import small_runs as runs


@pytest.fixture
def text(tmp_path):
    return runs.write_text(tmp_path / "text")


def two(text, folder, home, *more, **changes):
    options = runs.set_options(text, **changes)
    done = runs.atlas("train", "--output", folder, *more, *options, home=home, processes=2)
    assert done.returncode == 0, done.stderr
    return done


STEPS = {"train__steps": 20, "train__save_every": 5}


@pytest.fixture
def alone(tmp_path, text):
    """The same 20 steps on one process."""
    runs.train(text, tmp_path / "one", **STEPS)
    assert len(runs.losses(tmp_path / "one")) == 20
    return runs.losses(tmp_path / "one")


def test_two_processes_equal_one(tmp_path, text, home, alone):
    """From the start, and back on one process from what two have saved."""
    folder = tmp_path / "two"
    done = two(text, folder, home, **STEPS)
    assert done.stdout.count("bits per byte") == 1
    assert runs.losses(folder) == pytest.approx(alone, abs=1e-4)
    runs.cut_back(folder, 10)
    runs.train(text, folder, resume=True, **STEPS)
    assert runs.losses(folder) == pytest.approx(alone, abs=1e-4)


def test_two_sharded_processes_equal_one(tmp_path, text, home, alone):
    """They go on from what one has saved, and one goes on from what they have saved."""
    folder = tmp_path / "one"
    runs.cut_back(folder, 5)
    done = two(text, folder, home, "--resume", train__parallel="fsdp", **STEPS)
    assert "going on from step 5" in done.stderr
    assert runs.losses(folder) == pytest.approx(alone, abs=1e-4)
    runs.cut_back(folder, 10)
    runs.train(text, folder, resume=True, **STEPS)
    assert runs.losses(folder) == pytest.approx(alone, abs=1e-4)


def test_a_batch_that_cannot_be_shared_is_refused():
    from atlas_memory.training.prepare import micro_batches
    from atlas_memory.training.recipe import Train

    assert micro_batches(Train(batch=12, micro_batch=2), 2) == (2, 3)
    with pytest.raises(ValueError, match="cannot be shared by 5 processes"):
        micro_batches(Train(batch=12), 5)
    with pytest.raises(ValueError, match="does not divide the 6"):
        micro_batches(Train(batch=12, micro_batch=4), 2)
