"""Small runs for the tests: a text, a recipe, and a process that can be killed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from atlas_memory.training import checkpoints
from atlas_memory.training.prepare import prepare
from atlas_memory.training.recipe import Recipe
from atlas_memory.training.run import run
from atlas_memory.training.run_folder import RunFolder

WORDS = ["the", "memory", "reads", "a", "word", "and", "keeps", "what", "it", "can", "of", "text"]
SMALL = {
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 32,
    "model.memory.window": 4,
    "model.memory.chunk": 8,
    "model.memory.optimizer.period": 8,
    "data.length": 16,
    "data.validation_tokens": 64,
    "train.batch": 4,
    "train.steps": 6,
    "train.log_every": 1,
    "train.save_every": 2,
    "train.keep": 9,
    "train.learning_rate": 1e-2,
    "train.threads": 1,
    "train.sample": 4,
}


def write_text(folder, words=3000, seed=0, documents=5):
    """A folder with as many documents of random words."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(documents):
        chosen = torch.randint(len(WORDS), (words // documents,), generator=generator)
        (folder / f"{n}.txt").write_text(" ".join(WORDS[i] for i in chosen))
    return folder


def assignments(text, **changes):
    fields = {**SMALL, "data.source": json.dumps(str(text))}
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    words = {True: "true", False: "false"}
    return [
        f"{name}={words[v] if isinstance(v, bool) else v}"
        for name, v in fields.items()
        if v is not None
    ]


def recipe(text, **changes):
    return Recipe().set(assignments(text, **changes))


def train(text, folder, resume=False, say=lambda _: None, **changes):
    """A run in this process."""
    return run(prepare(recipe(text, **changes), say), RunFolder(folder), say, resume=resume)


def command(*arguments, processes=1):
    """`atlas` in processes of its own."""
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*start, "-m", "atlas_memory.cli", *map(str, arguments)]


def environment(home):
    return {**os.environ, "ATLAS_HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def atlas(*arguments, home, processes=1, timeout=240):
    return subprocess.run(
        command(*arguments, processes=processes),
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def set_options(text, **changes):
    return [part for one in assignments(text, **changes) for part in ("--set", one)]


def weights(folder, step):
    return load_file(Path(folder) / "checkpoints" / f"checkpoint-{step}" / "model.safetensors")


def losses(folder):
    return [m["loss"] for m in RunFolder(Path(folder)).read_metrics() if "loss" in m]


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def cut_back(folder, step):
    """As if the process had been killed after the checkpoint of `step`."""
    for checkpoint in checkpoints.checkpoints(folder / "checkpoints"):
        if checkpoints.step_of(checkpoint) > step:
            shutil.rmtree(checkpoint)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "model")
