"""A run in one process: what it leaves behind, how it goes on, and what stops it."""

import json
import resource
import shutil
import signal
import subprocess

import numpy as np
import pytest
import small_runs as runs
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from atlas_memory.training import checkpoints
from atlas_memory.training.divergence import DivergedError
from atlas_memory.training.run_folder import RunFolder


@pytest.fixture
def text(tmp_path):
    return runs.write_text(tmp_path / "text")


def test_a_run_folder_explains_itself(tmp_path, text):
    result = runs.train(text, tmp_path / "run", train__steps=30, train__validate_every=10)
    folder = RunFolder(tmp_path / "run")
    assert result.finished
    assert folder.read_recipe() == runs.recipe(text, train__steps=30, train__validate_every=10)
    environment = json.loads(folder.environment.read_text())
    assert environment["packages"]["torch"] == torch.__version__
    metrics = folder.read_metrics()
    assert [m["step"] for m in metrics if "loss" in m] == list(range(1, 31))
    assert [m["step"] for m in metrics if "eval_loss" in m] == [10, 20, 30]
    assert metrics[-1]["step"] == 30
    assert folder.curve.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(folder.result.read_text())
    first = np.mean([m["bits_per_token"] for m in metrics[:3]])
    assert figures["validation_bits_per_byte"] < first - 1
    assert figures["validation_byte_perplexity"] == pytest.approx(
        2 ** figures["validation_bits_per_byte"]
    )
    best = min(m["eval_bits_per_byte"] for m in metrics if "eval_loss" in m)
    assert figures["best"] == best
    kept = AutoModelForCausalLM.from_pretrained(folder.model).state_dict()
    assert torch.equal(
        kept["model.embed_tokens.weight"],
        runs.weights(folder.path, figures["best_step"])["model.embed_tokens.weight"],
    )
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_validation_is_exact_whatever_the_batch(tmp_path, text):
    """Bits per byte are those of the model's own loss over every window, documents and all."""
    changes = {"data__validation_tokens": 0, "data__validation_share": 0.2}
    runs.train(text, tmp_path / "a", train__steps=1, **changes)
    runs.train(text, tmp_path / "b", train__steps=1, train__micro_batch=1, **changes)
    one, two = (json.loads((tmp_path / n / "result.json").read_text()) for n in "ab")
    assert one["validation_loss"] == pytest.approx(two["validation_loss"], rel=1e-6)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "model").eval()
    from atlas_memory.training.prepare import prepare

    windows = prepare(runs.recipe(text, train__steps=1, **changes), print).validation
    nats = tokens = 0.0
    for n in range(len(windows)):
        example = {name: x[None] for name, x in windows[n].items()}
        count = int((example["labels"][:, 1:] != -100).sum())
        with torch.no_grad():
            nats += model(**example).loss.item() * count
        tokens += count
    assert one["validation_loss"] == pytest.approx(nats / tokens, rel=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_accumulation_changes_nothing_but_rounding(tmp_path, text, stream):
    whole = {"train__stream": stream, "train__steps": 4}
    runs.train(text, tmp_path / "a", **whole)
    runs.train(text, tmp_path / "b", train__micro_batch=2, **whole)
    assert runs.losses(tmp_path / "b") == pytest.approx(runs.losses(tmp_path / "a"), abs=1e-5)


@pytest.mark.parametrize("repeats", [{}, {"data__reread": 0.5, "train__prime": 3}])
@pytest.mark.parametrize("stream", [False, True])
def test_resumed_runs_equal_uninterrupted_ones(tmp_path, text, stream, repeats):
    changes = {"train__stream": stream, "train__micro_batch": 2, **repeats}
    runs.train(text, tmp_path / "a", **changes)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    runs.cut_back(tmp_path / "b", 2)
    said = []
    runs.train(text, tmp_path / "b", resume=True, say=said.append, **changes)
    assert "going on from step 2" in said
    assert runs.same(runs.weights(tmp_path / "a", 6), runs.weights(tmp_path / "b", 6))
    assert runs.losses(tmp_path / "a") == runs.losses(tmp_path / "b")


def test_a_finished_run_says_so_and_goes_on_with_more_steps(tmp_path, text):
    runs.train(text, tmp_path / "a")
    before = (tmp_path / "a" / "result.json").read_bytes()
    said = []
    runs.train(text, tmp_path / "a", resume=True, say=said.append)
    assert said == [f"{tmp_path / 'a'} is finished at step 6; to go on give more --steps"]
    assert (tmp_path / "a" / "result.json").read_bytes() == before
    more = runs.train(text, tmp_path / "a", resume=True, say=said.append, train__steps=8)
    assert "going on from step 6" in said
    assert more.step == 8
    folder = RunFolder(tmp_path / "a")
    assert folder.read_recipe().train.steps == 8
    assert [m["step"] for m in folder.read_metrics() if "loss" in m] == list(range(1, 9))


def test_the_run_folder_loads_as_its_model_does(tmp_path, text):
    runs.train(text, tmp_path / "a", train__steps=1)
    one, two = (
        AutoModelForCausalLM.from_pretrained(p) for p in (tmp_path / "a", tmp_path / "a/model")
    )
    assert runs.same(one.state_dict(), two.state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path / "a").encode("ab") == [97, 98]
    shutil.move(tmp_path / "a", tmp_path / "moved")
    AutoModelForCausalLM.from_pretrained(tmp_path / "moved")


def test_a_run_killed_after_its_last_step_is_summed_up(tmp_path, text):
    whole = runs.train(text, tmp_path / "a")
    runs.cut_back(tmp_path / "a", 6)
    again = runs.train(text, tmp_path / "a", resume=True)
    changing = ("seconds",)
    for name in whole.figures.keys() - changing:
        assert again.figures[name] == whole.figures[name], name


def test_a_carried_memory_is_used(tmp_path, text):
    """With steps of size zero, segments read one after another are one long text."""
    from atlas_memory.training.prepare import prepare

    changes = {"train__stream": True, "train__steps": 3, "train__batch": 1}
    changes |= {"train__learning_rate": 0.0}
    runs.train(text, tmp_path / "a", **changes)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "model").eval()
    lane = prepare(runs.recipe(text, **changes), print).train
    ids = torch.cat([lane[n]["input_ids"] for n in range(3)])[None]
    with torch.no_grad():
        logits = model(ids).logits[0]
    nats = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
    expected = [nats[0:15].mean(), nats[16:31].mean(), nats[32:47].mean()]
    assert runs.losses(tmp_path / "a") == pytest.approx([x.item() for x in expected], abs=1e-4)


@pytest.mark.parametrize(("there", "cpu", "used"), [(True, False, False), (True, True, True)])
def test_an_accelerator_is_used_unless_the_processor_is_asked_for(
    tmp_path, text, monkeypatch, there, cpu, used
):
    from atlas_memory.training.prepare import prepare
    from atlas_memory.training.run import training_arguments

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: there)
    prepared = prepare(runs.recipe(text), print)
    assert training_arguments(prepared, RunFolder(tmp_path / "a"), cpu).use_cpu is used


def test_a_damaged_checkpoint_is_told_of_and_passed_over(tmp_path, text):
    runs.train(text, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    runs.cut_back(tmp_path / "b", 4)
    damaged = tmp_path / "b" / "checkpoints" / "checkpoint-4" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    (tmp_path / "b" / "checkpoints" / ".checkpoint-5").mkdir()
    said = []
    runs.train(text, tmp_path / "b", resume=True, say=said.append)
    assert any("checkpoint-4 is damaged (model.safetensors has changed)" in line for line in said)
    assert "going on from step 2" in said
    assert runs.same(runs.weights(tmp_path / "a", 6), runs.weights(tmp_path / "b", 6))
    assert not (tmp_path / "b" / "checkpoints" / ".checkpoint-5").exists()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda c: (c / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (lambda c: (c / "optimizer.pt").write_bytes(b"short"), "has 5 bytes instead of"),
        (lambda c: (c / "files.json").write_text("{"), "no readable files.json"),
    ],
)
def test_every_kind_of_damage_is_seen(tmp_path, harm, message):
    draft, final = tmp_path / "draft", tmp_path / "checkpoint-1"
    draft.mkdir()
    (draft / "optimizer.pt").write_bytes(b"0123456789")
    checkpoints.publish(draft, final)
    assert checkpoints.damage(final) is None
    harm(final)
    assert message in checkpoints.damage(final)


def test_only_the_newest_and_the_best_are_kept(tmp_path):
    for step in (2, 4, 10, 8, 6):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    checkpoints.forget(tmp_path, keep=2, best=4)
    assert [p.name for p in checkpoints.checkpoints(tmp_path)] == [
        "checkpoint-4",
        "checkpoint-8",
        "checkpoint-10",
    ]


@pytest.mark.parametrize("first", ["model.safetensors", "optimizer.pt"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_older_ones(tmp_path, text, first):
    """No room from the middle of a file on, as on a full disk."""
    runs.train(text, tmp_path / "a")
    runs.cut_back(tmp_path / "a", 2)
    older = tmp_path / "a" / "checkpoints" / "checkpoint-2"
    room = (older / first).stat().st_size - 1000
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(checkpoints.SaveError, match="checkpoint-2 is intact; make room") as no:
            runs.train(text, tmp_path / "a", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(no.value)
    assert checkpoints.damage(older) is None
    assert [p.name for p in older.parent.iterdir()] == ["checkpoint-2"]
    assert runs.train(text, tmp_path / "a", resume=True).finished


def test_other_data_is_refused_on_resume(tmp_path, text):
    runs.train(text, tmp_path / "a")
    runs.cut_back(tmp_path / "a", 2)
    with pytest.raises(ValueError, match="data seed=0 and this run has 1"):
        runs.train(text, tmp_path / "a", resume=True, train__seed=1)
    with pytest.raises(ValueError, match=r"data reread=None and this run has 0\.5"):
        runs.train(text, tmp_path / "a", resume=True, data__reread=0.5)


def test_repeats_cannot_be_left_out_on_resume(tmp_path, text):
    runs.train(text, tmp_path / "a", train__prime=2)
    runs.cut_back(tmp_path / "a", 2)
    with pytest.raises(ValueError, match="data prime=2 and this run has None"):
        runs.train(text, tmp_path / "a", resume=True)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, text):
    with pytest.raises(DivergedError, match=r"at step \d+; the batch") as caught:
        runs.train(text, tmp_path / "a", train__learning_rate=1e30, train__clip=0, train__steps=50)
    folder = tmp_path / "a" / "divergence"
    report = json.loads((folder / "report.json").read_text())
    assert f"at step {report['step']};" in str(caught.value)
    (gates,) = report["gates"].values()
    assert set(gates) == {"alpha", "eta", "theta", "gamma"}
    assert load_file(folder / "batch.safetensors")["input_ids"].shape == (4, 16)


def test_options_of_long_runs_train(tmp_path, text):
    """bfloat16, recomputed layers and a trained vocabulary, together."""
    from atlas_memory.data.documents import Files, find_files
    from atlas_memory.data.tokenizer import train_tokenizer

    files = Files(tuple(find_files(str(text))))
    trained = train_tokenizer(files.documents(), 300)
    (tmp_path / "tokenizer.json").write_text(trained.fast.backend_tokenizer.to_str())
    result = runs.train(
        text,
        tmp_path / "a",
        data__tokenizer=json.dumps(str(tmp_path / "tokenizer.json")),
        train__precision="bfloat16",
        train__checkpoint_layers=True,
        train__steps=3,
    )
    figures = result.figures
    assert figures["validation_bits_per_byte"] < figures["validation_bits_per_token"]


def test_recall_is_learned_from_made_up_examples(tmp_path):
    changes = {"data__pairs": 2, "model__vocab_size": 32, "train__steps": 3}
    result = runs.train("mqar", tmp_path / "a", **changes)
    assert 0 <= result.figures["validation_accuracy"] <= 1
    assert result.figures["sample"] is None


def started(tmp_path, text, home, **changes):
    """A run in a process of its own, after its third step."""
    arguments = ["train", "--output", tmp_path / "run", *runs.set_options(text, **changes)]
    process = subprocess.Popen(
        runs.command(*arguments), env=runs.environment(home), stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.split("/")[0].split() == ["step", "3"]:
            return process
    raise AssertionError("the run ended too early")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_stopping_writes_a_checkpoint_and_leaves_quietly(tmp_path, text, home, number):
    process = started(tmp_path, text, home, train__steps=2000, train__save_every=2000)
    process.send_signal(number)
    process.send_signal(number)  # as `timeout` and torchrun do
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "go on with: atlas train" in said
    (checkpoint,) = checkpoints.checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.damage(checkpoint) is None


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, text, home):
    """kill -9 while steps and checkpoints alternate; the end is the same to the last bit."""
    changes = {"train__steps": 40, "train__save_every": 1, "train__keep": 2}
    process = started(tmp_path, text, home, **changes)
    process.kill()
    process.communicate(timeout=60)
    folder = tmp_path / "run"
    assert not (folder / "result.json").exists()
    assert 2 <= checkpoints.step_of(checkpoints.newest_whole(folder / "checkpoints", print)) < 40
    runs.train(text, folder, resume=True, **changes)
    runs.train(text, tmp_path / "whole", **changes)
    assert runs.same(runs.weights(tmp_path / "whole", 40), runs.weights(folder, 40))
