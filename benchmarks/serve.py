"""A server under load: are all answers right, does it grow, and what does batching gain?

    python benchmarks/serve.py RUN                        5 minutes with 64 clients
    python benchmarks/serve.py RUN --seconds 60           a shorter look
    python benchmarks/serve.py RUN --json FILE            also writes the figures

RUN is a folder of `atlas train`. It is served on loopback by a process of its own, with as many
threads as it takes itself unless --threads says otherwise. First every question is put to
transformers' `generate` alone; then the clients, OpenAI's own, ask them all at once, some of a
memory or of a fork of it that they make and delete, some behind a long beginning that they share,
some with scores, half of them as streams of which some are left in the middle, and compare. Where
an answer differs, the two tokens are looked up in the logits: a difference that is no near tie is a
wrong answer. Throughput is tokens per second of the server's processor time and of the clock, first
with 1 client and then with 16.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from openai import AsyncOpenAI

import atlas_memory as am
from atlas_memory.processor import leave_a_core
from atlas_memory.reading.loading import Loaded, load_run

TEXT = (Path(__file__).parents[1] / "README.md").read_text()
BOOK = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()[:6_000]
BEGINNING = BOOK[:1_500]
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Question(NamedTuple):
    """A prompt of some length, how long an answer is wanted, and what generate answers."""

    prompt: str
    tokens: int
    remembers: bool
    expected: tuple[int, ...]
    text: str


@dataclass
class Tally:
    """What the clients saw."""

    answers: int = 0
    tokens: int = 0
    left: int = 0
    forks: int = 0
    errors: list[str] = field(default_factory=list)
    different: list[tuple[Question, str]] = field(default_factory=list)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--precision")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def tokens_of(loaded: Loaded, text: str) -> list[int]:
    return list(map(int, next(loaded.tokenizer.encode([text.encode()]))))


def ask_alone(loaded: Loaded, count: int) -> list[Question]:
    """Prompts of 1 to 700 letters, answers of 8 to 72 tokens; every third goes on from a book."""
    draw = random.Random(0)
    book = am.read(loaded.model, [tokens_of(loaded, BOOK)])
    questions = []
    for i in range(count):
        start, remembers = draw.randrange(len(TEXT) - 1000), i % 3 == 2
        shared = BEGINNING if i % 4 == 1 else ""
        prompt = shared + TEXT[start : start + draw.choice((1, 12, 50, 150, 300, 700))]
        tokens = draw.choice((8, 16, 40, 72))
        ids = tokens_of(loaded, prompt)
        given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
        inputs: dict[str, Any] = book.inputs([ids]) if remembers else given
        out = loaded.model.generate(
            **inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        expected = out[0, inputs["input_ids"].shape[1] :].tolist()
        text = loaded.tokenizer.fast.decode(expected)
        questions.append(Question(prompt, tokens, remembers, tuple(expected), text))
    return questions


class Server:
    """`atlas serve` as a process of its own."""

    def __init__(
        self, run: Path, precision: str | None, threads: int | None, *options: str
    ) -> None:
        command = [sys.executable, "-m", "atlas_memory.cli", "serve", str(run), "--port", "0"]
        command += options
        command += ["--precision", precision] if precision else []
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"at (http://\S+);", line):
                self.address = found[1]
                return
        raise SystemExit("the server did not start")

    def resident(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> float:
        """Seconds until it has ended."""
        begin = time.perf_counter()
        self.process.terminate()
        self.process.wait(120)
        return time.perf_counter() - begin


@dataclass(frozen=True)
class Site:
    """Where to ask: the client, the model's name, and the memory of the book."""

    api: AsyncOpenAI
    model: str
    memory: str

    @staticmethod
    async def open(address: str) -> "Site":
        api = AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=600, max_retries=0)
        model = (await api.models.list()).data[0].id
        book = await api.post("/memories", body={"text": BOOK}, cast_to=dict)
        return Site(api, model, book["id"])


async def ask(
    site: Site, question: Question, stream: bool, scored: bool, memory: str
) -> tuple[str, int]:
    options: dict[str, Any] = {"model": site.model, "prompt": question.prompt, "temperature": 0}
    options |= {"max_tokens": question.tokens, "logprobs": 2 if scored else None}
    options |= {"extra_body": {"memory": memory} if question.remembers else {}}
    if not stream:
        answer = await site.api.completions.create(**options)
        scores = answer.choices[0].logprobs
        assert not scored or len(scores.token_logprobs) == answer.usage.completion_tokens
        return answer.choices[0].text, answer.usage.completion_tokens
    text, tokens = "", 0
    usage = {"include_usage": True}
    async for event in await site.api.completions.create(
        **options, stream=True, stream_options=usage
    ):
        if event.usage:
            tokens = event.usage.completion_tokens
        text += "".join(choice.text for choice in event.choices)
    return text, tokens


async def leave(site: Site, question: Question) -> None:
    """Begin a stream and hang up."""
    options = {"prompt": question.prompt, "max_tokens": question.tokens}
    stream = await site.api.completions.create(model=site.model, **options, stream=True)
    async for _ in stream:
        break
    await stream.close()


async def fork(site: Site) -> str:
    made = await site.api.post(f"/memories/{site.memory}/fork", body={}, cast_to=dict)
    return str(made["id"])


async def client(
    site: Site, seed: int, questions: list[Question], end: float, tally: Tally, plain: bool
) -> None:
    draw = random.Random(seed)
    while time.perf_counter() < end:
        question, memory = draw.choice(questions), site.memory
        try:
            if not plain and draw.random() < 0.05:
                await leave(site, question)
                tally.left += 1
                continue
            if question.remembers and not plain and draw.random() < 0.1:
                memory = await fork(site)
                tally.forks += 1
            stream, scored = draw.random() < 0.5, not plain and draw.random() < 0.2
            text, tokens = await ask(site, question, stream, scored, memory)
            if memory != site.memory:
                await site.api.delete(f"/memories/{memory}", cast_to=dict)
        except Exception as error:
            tally.errors.append(repr(error))
            continue
        tally.answers += 1
        tally.tokens += tokens
        if text != question.text:
            tally.different.append((question, text))


async def load(
    site: Site, clients: int, seconds: float, questions: list[Question], plain: bool = False
) -> Tally:
    """plain: nobody hangs up, wants scores or forks a memory."""
    tally, end = Tally(), time.perf_counter() + seconds
    asking = (client(site, i, questions, end, tally, plain) for i in range(clients))
    await asyncio.gather(*asking)
    return tally


async def watch(server: Server, sizes: list[tuple[float, int]]) -> None:
    begin = time.perf_counter()
    while True:
        sizes.append((time.perf_counter() - begin, server.resident()))
        await asyncio.sleep(1)


async def throughput(
    server: Server, site: Site, clients: int, questions: list[Question]
) -> dict[str, float]:
    """Long answers to short prompts: what a decode step costs."""
    begin, processor = time.perf_counter(), server.processor_seconds()
    tally = await load(site, clients, 20, questions, plain=True)
    clock, spent = time.perf_counter() - begin, server.processor_seconds() - processor
    assert not tally.errors
    return {"per_second": tally.tokens / clock, "per_processor_second": tally.tokens / spent}


def near_tie(loaded: Loaded, question: Question, text: str) -> float | None:
    """How far apart the logits of the two tokens are where the answers part; None: too far."""
    decode, expected = loaded.tokenizer.fast.decode, list(question.expected)
    parts = (i for i in range(len(expected)) if not text.startswith(decode(expected[: i + 1])))
    if (at := next(parts, None)) is None:
        return None
    known = tokens_of(loaded, BOOK) if question.remembers else []
    ids = torch.tensor([[*known, *tokens_of(loaded, question.prompt), *expected[:at]]])
    with torch.no_grad():
        logits = loaded.model(ids, logits_to_keep=1).logits[0, -1].double()
    tokens = range(len(logits))
    begins = [text.startswith(said) for said in (decode([*expected[:at], t]) for t in tokens)]
    if not any(begins):
        return None
    found = float(logits[torch.tensor(begins)].max())  # of the tokens that may have been written
    gap, best = abs(found - float(logits[expected[at]])), float(logits.max()) - found
    return gap if max(gap, best) < 0.01 else None


async def measure(given: argparse.Namespace, server: Server, questions: list[Question]) -> Any:
    site, sizes = await Site.open(server.address), []
    most = max(question.tokens for question in questions)
    long = [q for q in questions if q.tokens == most and len(q.prompt) <= 50]
    await load(site, 16, 3, questions)
    one = await throughput(server, site, 1, long)
    many = await throughput(server, site, 16, long)
    watcher = asyncio.create_task(watch(server, sizes))
    begin = time.perf_counter()
    tally = await load(site, given.clients, given.seconds, questions)
    seconds = time.perf_counter() - begin
    watcher.cancel()
    status = await site.api.get("/status", cast_to=dict)
    return tally, sizes, seconds, {"one": one, "sixteen": many}, status


def report(given: argparse.Namespace, loaded: Loaded, measured: Any, stop: float) -> dict[str, Any]:
    tally, sizes, seconds, rates, status = measured
    ties = [near_tie(loaded, question, text) for question, text in tally.different]
    middle = [size for at, size in sizes if seconds / 5 <= at <= 2 * seconds / 5]
    last = [size for at, size in sizes if at >= 4 * seconds / 5]
    gain = {key: rates["sixteen"][key] / rates["one"][key] for key in rates["one"]}
    return {
        "clients": given.clients,
        "seconds": round(seconds, 1),
        "model": loaded.model.config.fingerprint(),
        "precision": given.precision or "float32",
        "answers": tally.answers,
        "tokens": tally.tokens,
        "left": tally.left,
        "forks": tally.forks,
        "errors": len(tally.errors),
        "wrong_answers": ties.count(None),
        "near_ties": len([tie for tie in ties if tie is not None]),
        "widest_tie": max((tie for tie in ties if tie is not None), default=0.0),
        "resident_second_fifth": median(middle),
        "resident_last_fifth": median(last),
        "throughput": rates | {"gain": gain},
        "left_running": status["running"] + status["waiting"],
        "seconds_to_stop": stop,
        "first_errors": tally.errors[:3],
    }


def main() -> None:
    given = arguments()
    leave_a_core(given.threads)
    loaded = load_run(given.run, given.precision)
    questions = ask_alone(loaded, given.questions)
    print(f"{len(questions)} questions answered alone", file=sys.stderr)
    with TemporaryDirectory() as store:
        options = ("--store", store, "--prefix-cache", "64MB", "--max-memories", "256")
        server = Server(given.run, given.precision, given.threads, *options)
        try:
            measured = asyncio.run(measure(given, server, questions))
        finally:
            stop = server.stop()
    figures = report(given, loaded, measured, stop)
    print(json.dumps(figures, indent=2))
    if given.json:
        known = json.loads(given.json.read_text()) if given.json.exists() else {}
        given.json.write_text(json.dumps(known | {figures["precision"]: figures}, indent=2) + "\n")
    raise SystemExit(bool(figures["errors"] or figures["wrong_answers"]))


if __name__ == "__main__":
    main()
