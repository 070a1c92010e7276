"""One run from a recipe to a result: prepare, train or go on, keep the best model, sum up."""

# mypy: disable-error-code="no-untyped-call, arg-type"

import json
import shutil
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atlas_memory.files import made_once
from atlas_memory.training.callbacks import Metrics, Progress, StopWhenAsked
from atlas_memory.training.checkpoints import newest_whole, step_of, sweep
from atlas_memory.training.loss_curve import draw
from atlas_memory.training.prepare import Prepared, Say, micro_batches
from atlas_memory.training.recipe import Recipe
from atlas_memory.training.run_folder import RunFolder, processes

SAMPLE_PROMPT = 64
NOT_THE_MODEL = {"optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.bin"}
NOT_THE_MODEL |= {"files.json", "data.json"}


@dataclass(frozen=True)
class Result:
    """How a run ended. figures: what result.json holds."""

    finished: bool
    step: int
    figures: dict[str, Any]


def run(
    prepared: Prepared, folder: RunFolder, say: Say, *, resume: bool = False, cpu: bool = False
) -> Result:
    """Train into a folder; with `resume` from its newest whole checkpoint, if it has one.

    cpu: train on the processor even where there is an accelerator.
    """
    if (ended := _ended(folder, prepared.recipe, say)) is not None:
        return ended
    rank, _ = processes()
    # torch tells of every block that its output is a view; nothing here writes into one
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    checkpoint = _starting_point(prepared, folder, say) if resume else None
    if rank == 0:
        if folder.recipe.is_file():
            folder.write_recipe(prepared.recipe)  # a run may go on with more steps
        else:
            folder.create(prepared.recipe)
        sweep(folder.checkpoints)
        folder.forget_after(step_of(checkpoint) if checkpoint else 0)
    trainer, stop = _trainer(prepared, folder, say, cpu)
    started = time.monotonic()
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        stop.restore()
    step, seconds = trainer.state.global_step, time.monotonic() - started
    if rank == 0:
        draw({prepared.recipe.model.variant: folder.read_metrics()}, folder.curve)
    if stop.asked and step < prepared.recipe.train.steps:
        return Result(False, step, {"step": step})
    figures = _figures(trainer, prepared, seconds)
    if rank == 0:
        _keep_best(trainer, folder)
        figures |= _of_the_best(prepared, folder, step)
        folder.result.write_text(json.dumps(figures, indent=2) + "\n")
    return Result(True, step, figures)


def _ended(folder: RunFolder, recipe: Recipe, say: Say) -> Result | None:
    """The result of a run that has made all its steps; with more steps it is not at its end."""
    if not folder.result.is_file():
        return None
    figures = json.loads(folder.result.read_text())
    if figures["step"] < recipe.train.steps:
        return None
    say(f"{folder.path} is finished at step {figures['step']}; to go on give more --steps")
    return Result(True, figures["step"], figures)


def _starting_point(prepared: Prepared, folder: RunFolder, say: Say) -> Path | None:
    from atlas_memory.training.trainer import require_same_data

    checkpoint = newest_whole(folder.checkpoints, say)
    if checkpoint is None:
        say(f"{folder.path} has no whole checkpoint; starting at step 0")
        return None
    require_same_data(checkpoint, prepared.data)
    say(f"going on from step {step_of(checkpoint)}")
    return checkpoint


def _trainer(
    prepared: Prepared, folder: RunFolder, say: Say, cpu: bool = False
) -> tuple[Any, StopWhenAsked]:
    import torch
    from transformers import PrinterCallback
    from transformers.utils import logging

    from atlas_memory.data.windows import collate
    from atlas_memory.memory import compile_chunks
    from atlas_memory.memory.native import library
    from atlas_memory.model import AtlasForCausalLM
    from atlas_memory.training.retrofit_trainer import RetrofitTrainer
    from atlas_memory.training.trainer import AtlasTrainer, Stream, Surroundings

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    train = prepared.recipe.train
    if train.threads:
        torch.set_num_threads(train.threads)
    arguments = training_arguments(prepared, folder, cpu)
    torch.manual_seed(train.seed)
    metrics = Metrics(folder, train.batch * prepared.recipe.data.length)
    stop = StopWhenAsked(say)
    start, chosen = prepared.start, prepared.recipe.retrofit
    kind: Any = AtlasTrainer if start is None else partial(RetrofitTrainer, chosen)
    trainer = kind(
        Surroundings(folder, prepared.data, prepared.bytes_per_token, train.keep, say),
        Stream(arguments.gradient_accumulation_steps) if train.stream else None,
        model=AtlasForCausalLM(prepared.config) if start is None else start,
        args=arguments,
        data_collator=collate,
        train_dataset=prepared.train,
        eval_dataset=prepared.validation,
        processing_class=prepared.tokenizer.fast if prepared.tokenizer else None,
        callbacks=[metrics, Progress(metrics, say), stop],
    )
    trainer.remove_callback(PrinterCallback)
    if train.compile and (arguments.device.type != "cpu" or library.why_not()):
        compile_chunks()  # kernels do more than that
    return trainer, stop


def training_arguments(prepared: Prepared, folder: RunFolder, cpu: bool = False) -> Any:
    """The recipe in transformers' words."""
    import torch
    from transformers import TrainingArguments

    train = prepared.recipe.train
    micro, accumulate = micro_batches(train, processes()[1])
    score = "bits_per_byte" if prepared.bytes_per_token is not None else "accuracy"
    sharded = train.parallel == "fsdp" and processes()[1] > 1
    return TrainingArguments(
        output_dir=str(folder.checkpoints),
        max_steps=train.steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=accumulate,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.schedule,
        lr_scheduler_kwargs={"min_lr_rate": 0.1} if train.schedule.endswith("min_lr") else {},
        warmup_steps=train.warmup,
        weight_decay=train.weight_decay,
        adam_beta1=train.beta1,
        adam_beta2=train.beta2,
        max_grad_norm=train.clip,
        bf16=train.precision == "bfloat16",
        gradient_checkpointing=train.checkpoint_layers,
        torch_compile=train.compile,
        seed=train.seed,
        data_seed=train.seed,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=train.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=train.validate_every or train.steps,
        save_strategy="steps",
        save_steps=train.save_every or train.steps,
        metric_for_best_model=score,
        greater_is_better=score == "accuracy",
        report_to=list(train.report_to) or "none",
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        use_cpu=cpu or not torch.accelerator.is_available(),
        ddp_find_unused_parameters=False,
        fsdp=sharded or None,
        fsdp_config={"transformer_layer_cls_to_wrap": _layer_classes(prepared)}
        if sharded
        else None,
    )


def _layer_classes(prepared: Prepared) -> list[str]:
    return ["Block"] if prepared.start is None else sorted(prepared.start._no_split_modules)


def _figures(trainer: Any, prepared: Prepared, seconds: float) -> dict[str, Any]:
    from atlas_memory.training.prepare import parameters_of

    recipe: Recipe = prepared.recipe
    if not any("eval_loss" in entry for entry in trainer.state.log_history):
        trainer.evaluate()
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    last = {k.removeprefix("eval_"): v for k, v in history[-1].items() if k != "epoch"}
    kept = ("bits_per_byte", "byte_perplexity", "accuracy", "loss", "bits_per_token")
    tokens = trainer.state.global_step * recipe.train.batch * recipe.data.length
    return {
        "variant": recipe.model.variant,
        "size": recipe.origin,
        "parameters": parameters_of(prepared.config),
        "step": trainer.state.global_step,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "best": trainer.state.best_metric,
        "best_step": trainer.state.best_global_step,
        **{f"validation_{name}": last[name] for name in kept if name in last},
    }


def _keep_best(trainer: Any, folder: RunFolder) -> None:
    """Copy the model of the best checkpoint to where it can be loaded from."""
    best = trainer.state.best_global_step or trainer.state.global_step
    source = folder.checkpoints / f"checkpoint-{best}"

    def copy(draft: Path) -> None:
        for path in source.iterdir():
            leave = path.name.startswith(("rng_state", "stream-")) or path.name in NOT_THE_MODEL
            if path.is_file() and not leave:
                shutil.copy2(path, draft / path.name)

    shutil.rmtree(folder.model, ignore_errors=True)
    made_once(folder.model, copy)
    folder.show_model()


def _of_the_best(prepared: Prepared, folder: RunFolder, step: int) -> dict[str, Any]:
    """What the kept model does with text: its second reading, which is logged too, and a sample."""
    from transformers import AutoModelForCausalLM

    from atlas_memory.training.reread import draw, reread

    if prepared.tokenizer is None:
        return {"reread": None, "sample": None}
    model = AutoModelForCausalLM.from_pretrained(folder.model).eval()
    most = prepared.recipe.data.validation_tokens or None
    found = reread(model, prepared.validation.tokens.ids[:most])
    if found is not None:
        folder.log(step, {f"reread_{name}": value for name, value in found.items()})
        draw({prepared.recipe.model.variant: found}, folder.reread)
    return {"reread": found, "sample": sample(model, prepared)}


def sample(model: Any, prepared: Prepared) -> str | None:
    """A text that the model goes on with, from the beginning of the validation text."""
    import torch

    if prepared.tokenizer is None or prepared.recipe.train.sample == 0:
        return None
    start = prepared.validation[0]["input_ids"][None, :SAMPLE_PROMPT]
    torch.manual_seed(prepared.recipe.train.seed)
    ids = model.generate(
        start,
        max_new_tokens=prepared.recipe.train.sample,
        do_sample=True,
        temperature=0.8,
        pad_token_id=prepared.tokenizer.end or 0,
    )
    return prepared.tokenizer.fast.decode(ids[0, start.shape[1] :])
