"""Benchmark items from local files, one JSON object a line, in the columns that lm-eval expects.

A line holds either the columns of the data set on the hub, or one of three plain forms:

    {"context": "..", "continuation": "word"}                        lambada_openai
    {"context_options": ["..", ".."], "continuation": "..", "gold": 0}     winogrande
    {"query": "..", "choices": ["..", ".."], "gold": 0}              the other choices

Both become the same columns, so lm-eval builds the very prompt that it builds from the hub.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_memory.names import reason

Row = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """A task's columns on the hub, its plain keys, and the way from these to those."""

    columns: tuple[str, ...]
    plain: tuple[str, ...]
    convert: Callable[[Row], Row]


def unavailable(task: str, error: Exception) -> ValueError:
    """datasets and huggingface_hub raise a dozen kinds of errors without a network."""
    told = f"the items of {task} cannot be had ({reason(error)})"
    return ValueError(f"{told}; give --data a folder with {task}.jsonl")


def find(folder: Path, task: str) -> Path | None:
    """The file of a task in a folder; WikiText may be a .txt as it is published."""
    names = [f"{task}.jsonl", *(["wikitext.txt"] if task == "wikitext" else [])]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_rows(file: Path, task: str) -> Iterator[Row]:
    """Every item of a file in the columns of the hub; a wrong one is told by its line."""
    if file.suffix == ".txt":
        yield from ({"page": page} for page in pages(file.read_text(encoding="utf-8")))
        return
    for row, where in json_lines(file):
        yield _converted(row, FORMS[task], where)


def json_lines(file: Path) -> Iterator[tuple[Row, str]]:
    """Every object of a file of JSON lines, and the words for where it stands."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{where} is no JSON object, such as {{...}}")
            yield row, where


def _converted(row: Row, form: Form, where: str) -> Row:
    keys = set(row)
    if keys.issuperset(form.columns):
        return {name: row[name] for name in form.columns}
    if not form.plain or not keys.issuperset(form.plain):
        wanted = " or ".join(", ".join(names) for names in (form.columns, form.plain) if names)
        raise ValueError(f"{where} has the keys {', '.join(sorted(keys)) or 'none'}; give {wanted}")
    try:
        return form.convert(row)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{where}: {error}") from error


def pages(text: str) -> list[str]:
    """The articles of a WikiText file: each begins with a line ` = Title = `."""
    starts = [match.start() for match in re.finditer(r"(?m)^ = [^=].*[^=] = $", text)]
    if not starts:
        raise ValueError("no article begins: WikiText has lines ' = Title = '")
    return [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


def _question(row: Row) -> str:
    """The query without the words that lm-eval puts around it."""
    query: str = row["query"]
    return query.removeprefix("Question: ").removesuffix("Answer:").rstrip("\n")


def _choices(row: Row, number: int | None = None) -> list[str]:
    choices: list[str] = row["choices"]
    if number is not None and len(choices) != number:
        raise ValueError(f"{len(choices)} choices; this task has {number}")
    if row["gold"] not in range(len(choices)):
        raise ValueError(f"gold={row['gold']!r} is none of the {len(choices)} choices")
    return choices


def _lambada(row: Row) -> Row:
    if " " in row["continuation"]:
        raise ValueError(f"continuation {row['continuation']!r} is more than one word")
    return {"text": f"{row['context']} {row['continuation']}"}


def _piqa(row: Row) -> Row:
    first, second = _choices(row, 2)
    return {"goal": _question(row), "sol1": first, "sol2": second, "label": row["gold"]}


def _arc(row: Row) -> Row:
    texts = _choices(row)
    labels = [chr(ord("A") + i) for i in range(len(texts))]
    choices = {"text": texts, "label": labels}
    return {"question": _question(row), "choices": choices, "answerKey": labels[row["gold"]]}


def _hellaswag(row: Row) -> Row:
    label, colon, context = row["query"].partition(": ")
    if not colon:
        raise ValueError("the query has no 'activity: ' at its beginning")
    columns = {"activity_label": label, "ctx_a": context, "ctx_b": ""}
    return {**columns, "endings": _choices(row, 4), "label": str(row["gold"])}


def _winogrande(row: Row) -> Row:
    """The whole contexts are the options: what follows the blank is what is scored."""
    first, second = row["context_options"]
    if row["gold"] not in (0, 1):
        raise ValueError(f"gold={row['gold']!r} is neither 0 nor 1")
    columns = {"sentence": f"_ {row['continuation']}", "option1": first, "option2": second}
    return {**columns, "answer": str(1 + row["gold"])}


def _social_iqa(row: Row) -> Row:
    """lm-eval joins context and question by a space: any space of the query will do."""
    query = row["query"].removeprefix("Q: ").removesuffix("A:").rstrip("\n")
    context, _, question = query.partition(" ")
    a, b, c = _choices(row, 3)
    answers = {"answerA": a, "answerB": b, "answerC": c}
    return {"context": context, "question": question, **answers, "label": str(1 + row["gold"])}


def _boolq(row: Row) -> Row:
    if _choices(row, 2) != ["no", "yes"]:
        raise ValueError(f"choices {row['choices']!r}; this task has 'no', 'yes'")
    text = row["query"].removeprefix("Passage: ").removesuffix("Answer:").rstrip("\n")
    passage, found, question = text.rpartition("\nQuestion: ")
    if not found:
        raise ValueError("the query has no line 'Question: '")
    return {"passage": passage, "question": question.removesuffix("?"), "label": row["gold"]}


_CHOICES = ("query", "choices", "gold")
_ARC = Form(("question", "choices", "answerKey"), _CHOICES, _arc)
_ANSWERS = ("answerA", "answerB", "answerC")

FORMS = {
    "wikitext": Form(("page",), (), dict),
    "lambada_openai": Form(("text",), ("context", "continuation"), _lambada),
    "piqa": Form(("goal", "sol1", "sol2", "label"), _CHOICES, _piqa),
    "hellaswag": Form(
        ("activity_label", "ctx_a", "ctx_b", "endings", "label"), _CHOICES, _hellaswag
    ),
    "winogrande": Form(
        ("sentence", "option1", "option2", "answer"),
        ("context_options", "continuation", "gold"),
        _winogrande,
    ),
    "arc_easy": _ARC,
    "arc_challenge": _ARC,
    "social_iqa": Form(("context", "question", *_ANSWERS, "label"), _CHOICES, _social_iqa),
    "boolq": Form(("passage", "question", "label"), _CHOICES, _boolq),
}
