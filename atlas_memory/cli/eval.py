"""atlas eval: a trained model on the paper's benchmarks."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_memory.cli.options import AsJson, Device, Precision, RunFolder, Tokenizer, load

NINE = "wikitext,lambada_openai,piqa,hellaswag,winogrande,arc_easy,arc_challenge,social_iqa,boolq"
TASKS = (
    f"Names with commas: {NINE.replace(',', ', ')} (these nine if left out); swde, fda, squad, nq, "
    "drop, triviaqa, key_value; niah, babilong; reread."
)
DATA = "A folder with TASK.jsonl files; a task without one comes from the Hugging Face hub."
LENGTH = "Tokens of a text that is scored at once."
LENGTHS = "Tokens of the texts of niah and babilong, with commas; the published ones if left out."
CORPUS = (
    "Their background: as --data of `atlas train` names it, or noise; enwik8 if left out. For "
    "reread, the text; the run's own if left out."
)


def run(
    run_folder: RunFolder,
    task: Annotated[str, typer.Option(help=TASKS, show_default=False)] = NINE,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many items of a task.")] = None,
    data: Annotated[Path | None, typer.Option(help=DATA)] = None,
    out: Annotated[Path | None, typer.Option(help="A file for the report, as JSON.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts at once.")] = 8,
    max_length: Annotated[int, typer.Option(min=2, help=LENGTH)] = 2048,
    lengths: Annotated[str | None, typer.Option(help=LENGTHS)] = None,
    corpus: Annotated[str | None, typer.Option(help=CORPUS)] = None,
    precision: Precision = None,
    device: Device = "cpu",
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model: language modelling, common sense, recall, long context.

    Examples: atlas eval runs/quickstart --task lambada_openai,piqa --limit 200;
    atlas eval runs/quickstart --task arc_easy --data eval/ --out arc.json;
    atlas eval runs/quickstart --task niah --lengths 2048 --limit 20 --json
    """
    from atlas_memory.cli.train import say
    from atlas_memory.evaluation.harness import Options
    from atlas_memory.evaluation.suite import evaluate, require_tasks

    names = require_tasks(task)
    chosen_lengths = _lengths(lengths)
    _require_places(data, out)
    loaded = load(run_folder, precision, tokenizer, device)
    options = Options(limit, data, batch, max_length, chosen_lengths, corpus, run_folder)
    report = {"run": str(run_folder), **evaluate(loaded, names, options, say)}
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report) if as_json else _readable(report))


def _lengths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = [word.strip().replace("_", "") for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"--lengths {text}: give numbers of tokens, such as 2048,4096")
    return tuple(map(int, words))


def _require_places(data: Path | None, out: Path | None) -> None:
    if data is not None and not data.is_dir():
        raise ValueError(f"--data {data} is no folder; give one with files such as piqa.jsonl")
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out {out}: its folder does not exist")
    if out is not None and out.is_dir():
        raise ValueError(f"--out {out} is a folder; give a file")


def _readable(report: dict[str, Any]) -> str:
    """A line for every figure, those of the paper first with a star."""
    from atlas_memory.evaluation.suite import REPORTED

    lines = [f"{'task':16} {'metric':18} {'value':>10} {'+-':>8} {'items':>7}"]
    for task, figures in report["tasks"].items():
        starred = REPORTED.get(task, ())
        names = [
            n for n, v in figures.items() if isinstance(v, float) and not n.endswith("_stderr")
        ]
        for name in sorted(names, key=lambda name: name not in starred):
            error = figures.get(f"{name}_stderr")
            shown = f"{'*' if name in starred else ' '}{name}"
            spread = "" if error is None else f"{error:.4f}"
            items = figures.get("items", "")
            lines.append(f"{task:16} {shown:18} {figures[name]:10.4g} {spread:>8} {items:>7}")
    if "average" in report:
        lines.append(f"{'average':16} {'*of eight':18} {report['average']:10.4g}")
    lines.append("* what the paper reports")
    return "\n".join([*lines, *(f"note: {sentence}" for sentence in report["deviations"])])
