"""A known prefix is not read again: how soon does the first token come, and is the answer the same?

    python benchmarks/prefix.py RUN                    one prefix of 100,000 tokens, asked twice
    python benchmarks/prefix.py RUN --requests 200     and random ones, with a cache and without

RUN is a folder of `atlas train`. Random requests share beginnings and part
from them anywhere; two servers in float64, one of them with a small prefix cache, must agree.
"""

import argparse
import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI
from serve import BOOK, TEXT, Server

BOUND = 40 * 2**20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    return parser.parse_args()


def prefix(api: OpenAI, tokens: int) -> str:
    """A text without repetition, so that it is known by its tokens alone."""
    draw, words = random.Random(0), re.findall(r"[a-z]+", TEXT + BOOK)
    text, count = "", 0
    while count < tokens:
        more = " ".join(draw.choices(words, k=1_000)) + " "
        count += api.post("/tokenize", body={"text": more}, cast_to=dict)["count"]
        text += more
    return text


def first_token(api: OpenAI, prompt: str) -> tuple[float, str]:
    """Seconds until it comes, and the whole text."""
    begin, seconds, text = time.perf_counter(), 0.0, ""
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "stream": True}
    model = api.models.list().data[0].id
    for event in api.completions.create(model=model, prompt=prompt, **options):
        seconds = seconds or time.perf_counter() - begin
        text += event.choices[0].text
    return seconds, text


def ask_twice(run: Path, tokens: int) -> dict[str, Any]:
    server = Server(run, None, 1, "--max-prompt-tokens", "10000000", "--timeout", "3600")
    try:
        api = OpenAI(base_url=f"{server.address}/v1", api_key="none", timeout=3600, max_retries=0)
        first_token(api, "warm")
        prompt = prefix(api, tokens) + "And then"
        (first, one), (second, two) = first_token(api, prompt), first_token(api, prompt)
    finally:
        server.stop()
    share = second / first
    return {"tokens": tokens, "first": first, "second": second, "share": share, "same": one == two}


def random_prompts(count: int) -> list[str]:
    draw = random.Random(1)
    stems = [TEXT[at : at + 3_000] for at in (0, 3_000, 6_000)]
    return [
        draw.choice(stems)[: draw.randrange(1, 3_000)] + "".join(draw.choices("xyz ", k=i % 7))
        for i in range(count)
    ]


async def answers(server: Server, prompts: list[str]) -> tuple[list[str], int]:
    """Eight at a time; and the most bytes that the prefix cache was seen to hold."""
    api = AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", timeout=3600, max_retries=0)
    model, places, most = (await api.models.list()).data[0].id, asyncio.Semaphore(8), 0

    async def ask(prompt: str) -> str:
        nonlocal most
        async with places:
            options: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
            answer = await api.completions.create(model=model, prompt=prompt, **options)
            figures = await api.get(f"{server.address}/metrics", cast_to=str)
            most = max(most, int(re.findall(r"^atlas_prefix_cache_bytes (\d+)", figures, re.M)[0]))
            return answer.choices[0].text

    return list(await asyncio.gather(*map(ask, prompts))), most


def compare(run: Path, count: int) -> dict[str, Any]:
    found, most = {}, 0
    for size in ("0", f"{BOUND}B"):
        server = Server(run, "float64", 1, "--prefix-cache", size, "--block", "128")
        try:
            found[size], most = asyncio.run(answers(server, random_prompts(count)))
        finally:
            server.stop()
    one, two = found.values()
    different = sum(a != b for a, b in zip(one, two, strict=True))
    return {"requests": count, "different": different, "bytes": most, "bound": BOUND}


def main() -> None:
    given = arguments()
    figures = {"twice": ask_twice(given.run, given.tokens)}
    figures["random"] = compare(given.run, given.requests)
    print(json.dumps(figures, indent=2))
    wrong = figures["random"]["different"] or figures["random"]["bytes"] > BOUND
    raise SystemExit(bool(wrong or not figures["twice"]["same"]))


if __name__ == "__main__":
    main()
