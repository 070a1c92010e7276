"""What happens beside the steps: progress, metrics, and stopping when asked to."""

import math
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback

from atlas_memory.training.run_folder import RunFolder

LOG2E = 1 / math.log(2)
PATIENCE = 2.0  # seconds after which a second Ctrl-C is meant


class Metrics(TrainerCallback):
    """One line of metrics.jsonl for every log, with bits beside nats and tokens per second."""

    def __init__(self, folder: RunFolder, tokens_per_step: int) -> None:
        self.folder, self.tokens_per_step = folder, tokens_per_step
        self.latest: dict[str, Any] = {}
        self.since: tuple[int, float] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.since = (state.global_step, time.monotonic())

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not state.is_world_process_zero:
            return
        logs: dict[str, Any] = given["logs"]
        kept = {k: v for k, v in logs.items() if k != "epoch"}
        if "loss" in kept:
            kept["bits_per_token"] = kept["loss"] * LOG2E
            kept |= self._speed(state.global_step)
        self.latest |= kept
        self.folder.log(state.global_step, kept)

    def _speed(self, step: int) -> dict[str, float]:
        assert self.since is not None
        begin, started = self.since
        seconds = max(1e-9, time.monotonic() - started)
        tokens = (step - begin) * self.tokens_per_step
        return {"tokens": step * self.tokens_per_step, "tokens_per_second": tokens / seconds}


class Progress(TrainerCallback):
    """Loss, speed and time left, a line for every log."""

    def __init__(self, metrics: Metrics, say: Callable[[str], None]) -> None:
        self.metrics, self.say = metrics, say

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not state.is_world_process_zero:
            return
        logs, latest = given["logs"], self.metrics.latest
        at = f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}"
        if "eval_bits_per_byte" in logs:
            self.say(f"{at}  validation {logs['eval_bits_per_byte']:.4f} bits per byte")
        elif "eval_accuracy" in logs:
            self.say(f"{at}  validation accuracy {logs['eval_accuracy']:.4f}")
        elif "loss" in logs:
            speed = latest["tokens_per_second"]
            left = (state.max_steps - state.global_step) * self.metrics.tokens_per_step / speed
            self.say(
                f"{at}  loss {logs['loss']:.4f} ({latest['bits_per_token']:.3f} bits)  "
                f"{speed:,.0f} tokens/s  {clock(left)} left"
            )


class StopWhenAsked(TrainerCallback):
    """Ctrl-C and SIGTERM: finish the step, write a checkpoint, leave. A later Ctrl-C kills."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.asked, self.since = say, False, 0.0
        self.before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self._ask)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._anyone_asked(args):
            self.asked = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = state.global_step >= state.max_steps
        return control

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Launchers pass a signal on that the process has had already, so one at once is one."""
        again = time.monotonic() - self.since > PATIENCE
        if self.asked and again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self.since = True, time.monotonic()
            self.say(f"{signal.Signals(number).name}: stopping after this step; Ctrl-C kills")

    def _anyone_asked(self, args: Any) -> bool:
        """A signal may reach one process of many, and they must stop at the same step."""
        if args.world_size == 1:
            return self.asked
        asked = torch.tensor(float(self.asked), device=args.device)
        torch.distributed.all_reduce(asked)
        return bool(asked.item())


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
