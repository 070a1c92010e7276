"""Two processes are one: same losses, sharded or not, and each goes on with the other's run."""

import shutil

import pytest
import runs

from atlas_memory.training import checkpoints


@pytest.fixture
def text(tmp_path):
    return runs.write_text(tmp_path / "text")


def cut_back(folder, step):
    for checkpoint in checkpoints.checkpoints(folder / "checkpoints"):
        if checkpoints.step_of(checkpoint) > step:
            shutil.rmtree(checkpoint)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "model")


def two(text, folder, home, *more, **changes):
    options = runs.set_options(text, **changes)
    done = runs.atlas("train", "--output", folder, *more, *options, home=home, processes=2)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one_and_go_on_for_each_other(tmp_path, text, home, parallel):
    """20 steps on one process; on two; on two from one's checkpoint; on one from two's."""
    changes = {"train__steps": 20, "train__save_every": 10, "train__parallel": parallel}
    runs.train(text, tmp_path / "one", **changes)
    alone = runs.losses(tmp_path / "one")
    assert len(alone) == 20
    shutil.copytree(tmp_path / "one", tmp_path / "one-two")
    cut_back(tmp_path / "one-two", 10)
    done = two(text, tmp_path / "one-two", home, "--resume", **changes)
    assert "going on from step 10" in done.stderr
    assert runs.losses(tmp_path / "one-two") == pytest.approx(alone, abs=1e-4)
    two_alone = tmp_path / "two"
    done = two(text, two_alone, home, **changes)
    assert done.stdout.count("bits per byte") == 1
    assert runs.losses(two_alone) == pytest.approx(alone, abs=1e-4)
    cut_back(two_alone, 10)
    runs.train(text, two_alone, resume=True, **changes)
    assert runs.losses(two_alone) == pytest.approx(alone, abs=1e-4)


def test_a_batch_that_cannot_be_shared_is_refused():
    from atlas_memory.training.prepare import micro_batches
    from atlas_memory.training.recipe import Train

    assert micro_batches(Train(batch=12, micro_batch=2), 2) == (2, 3)
    with pytest.raises(ValueError, match="cannot be shared by 5 processes"):
        micro_batches(Train(batch=12), 5)
    with pytest.raises(ValueError, match="does not divide the 6"):
        micro_batches(Train(batch=12, micro_batch=4), 2)
