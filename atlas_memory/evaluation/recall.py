"""In-context recall: documents that hold the answer, and the metric `contains`. [Atlas Table 5]

The prompts and the cut of "Just read twice" (Arora et al. 2024), which the papers on linear
recurrent models share: zero-shot, greedy, at most 48 new tokens, stop at a newline; an answer
counts if a reference occurs in it, whatever the case.
"""

# transformers is typed in parts, and datasets has no types.
# mypy: disable-error-code="import-untyped, misc, arg-type"

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.evaluation.local_data import json_lines, unavailable

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

Row = dict[str, Any]
CONTEXT, ANSWER = 2000, 50  # tokens of the prompt and, of these, kept free for the answer
NEW_TOKENS = 48
SUMMARY = "Summary of information above..."  # begins a prompt that SWDE's documents carry along


@dataclass(frozen=True)
class Item:
    """A prompt and the references of which one has to occur in what follows."""

    prompt: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class RecallTask:
    """A data set of the hub, its columns, its prompt, and what its document is cut around.

    centre: columns whose first occurrence in `text` is the middle of the cut; none: a prompt
    that is too long loses its beginning.
    """

    hub: str
    columns: tuple[str, ...]
    prompt: Callable[[Row], str]
    centre: tuple[str, ...] = ()


def _swde(row: Row) -> str:
    text = _without_ending(row["text"].split(SUMMARY)[0], f"{row['key']}:")
    return f"{text.strip().strip('.')}. {_capital(row['key'])}:"


def _fda(row: Row) -> str:
    text = _without_ending(row["text"], f"{row['key']}:")
    return f"{text.strip(chr(10)).strip('.')}. {_capital(row['key'])}:"


def _squad(row: Row) -> str:
    return str(row["text"]).strip()


def _nq(row: Row) -> str:
    question = row["question"].strip()
    context = row["context"].strip().removesuffix(question)
    return f"{context.strip().strip('.')}. {question}"


def _drop(row: Row) -> str:
    question = row["question"].strip()
    context = _without_ending(row["context"].strip(), question)
    return f"{context.strip().strip('.')}. {question}"


def _triviaqa(row: Row) -> str:
    return _drop({**row, "context": re.sub(r"\[(PAR|DOC|TLE)\]", "", row["context"].strip())})


def _capital(key: str) -> str:
    return key[:1].upper() + key[1:]


def _without_ending(text: str, ending: str) -> str:
    """The text without the question that some documents repeat at their end."""
    while ending and text.lower().endswith(ending.lower()):
        text = text[: -len(ending)]
    return text


_DOCUMENT, _PASSAGE = ("text", "key", "value"), ("context", "question", "answers")
TASKS = {
    "swde": RecallTask("hazyresearch/based-swde-v2", _DOCUMENT, _swde, ("key", "value")),
    "fda": RecallTask("hazyresearch/based-fda", _DOCUMENT, _fda, ("key", "value")),
    "squad": RecallTask("hazyresearch/based-squad", ("text", "value"), _squad, ("value",)),
    "nq": RecallTask("hazyresearch/based_nq_2048", _PASSAGE, _nq),
    "drop": RecallTask("hazyresearch/based_drop", _PASSAGE, _drop),
    "triviaqa": RecallTask("hazyresearch/based_triviaqa", _PASSAGE, _triviaqa),
}


def items(task: RecallTask, rows: Iterable[Row], tokenizer: Tokenizer) -> Iterator[Item]:
    """Prompts, cut as published; rows whose key or value has at most one character are skipped."""
    for row in rows:
        if any(len(row[name]) <= 1 for name in task.centre):
            continue
        text = cut(row["text"], [row[n] for n in task.centre], tokenizer) if task.centre else None
        prompt = task.prompt(row if text is None else {**row, "text": text})
        answers = row["answers"] if "answers" in task.columns else [row["value"]]
        yield Item(prompt, tuple(answers))


def cut(text: str, needles: Sequence[str], tokenizer: Tokenizer) -> str:
    """At most CONTEXT - ANSWER tokens around the first place where one of the needles occurs.

    Half of them before it, where there are so many; a document without them is cut at its end.
    """
    text, length = text.split(SUMMARY)[0].strip(), CONTEXT - ANSWER
    found = [text.lower().find(needle.lower()) for needle in needles]
    place = min((f for f in found if f >= 0), default=len(text))
    ids = encode(tokenizer, text)
    centre = len(encode(tokenizer, text[:place]))
    start = max(0, centre - length // 2)
    return str(tokenizer.fast.decode(ids[start : start + length], skip_special_tokens=True))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.fast.encode(text, add_special_tokens=False)


def contains(text: str, answers: Sequence[str]) -> bool:
    """Whether a reference occurs in a text, whatever the case."""
    return any(answer.lower() in text.lower() for answer in answers)


def evaluate(
    model: AtlasForCausalLM,
    tokenizer: Tokenizer,
    asked: Sequence[Item],
    batch: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The share of items whose answer contains a reference, and every answer."""
    if not asked:
        raise ValueError("there is no item to ask; every document was skipped or the file is empty")
    said: list[str] = []
    for first in range(0, len(asked), batch):
        said += answer(model, tokenizer, [i.prompt for i in asked[first : first + batch]])
        say(f"{len(said)} of {len(asked)} answered")
    right = [contains(text, item.answers) for text, item in zip(said, asked, strict=True)]
    share = sum(right) / len(right)
    error = (share * (1 - share) / max(1, len(right) - 1)) ** 0.5
    return {"contains": share, "contains_stderr": error, "items": len(right), "answers": said}


def answer(model: AtlasForCausalLM, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[str]:
    """What the model says after each prompt, up to a newline; greedy."""
    import torch

    rows = [encode(tokenizer, prompt)[-CONTEXT:] for prompt in prompts]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask.to(model.device),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=tokenizer.end,
        stopping_criteria=[_newline(tokenizer, longest)],
    )
    texts = [tokenizer.fast.decode(row, skip_special_tokens=True) for row in out[:, longest:]]
    return [text.split("\n")[0] for text in texts]


def _newline(tokenizer: Tokenizer, start: int) -> Any:
    """Stops every row at its first newline."""
    import torch
    from transformers import StoppingCriteria

    class Newline(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            texts = [tokenizer.fast.decode(row) for row in input_ids[:, start:]]
            return torch.tensor(["\n" in text for text in texts], device=input_ids.device)

    return Newline()


def load_rows(name: str, data: Path | None) -> tuple[Iterator[Row], str]:
    """The rows of a task from NAME.jsonl in a folder, else from the hub, and where they are."""
    task = TASKS[name]
    file = None if data is None else data / f"{name}.jsonl"
    if file is not None and file.is_file():
        return _from_file(file, task.columns), str(file)
    return _from_hub(name, task), "the hub"


def _from_file(file: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    for row, where in json_lines(file):
        missing = [name for name in columns if name not in row]
        if missing:
            raise ValueError(f"{where} has no {', '.join(missing)}; give {', '.join(columns)}")
        yield row


def _from_hub(name: str, task: RecallTask) -> Iterator[Row]:
    from datasets import load_dataset

    try:
        rows = load_dataset(task.hub, split="validation")
    except Exception as error:
        raise unavailable(name, error) from error
    yield from rows


def limited(asked: Iterator[Item], limit: int | None) -> list[Item]:
    return list(asked if limit is None else islice(asked, limit))
