"""Scores of tokens as OpenAI's two APIs write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_memory.serving.scores import Score
from atlas_memory.serving.server.token_texts import Offsets, TokenTexts


def of_completion(scores: Sequence[Score], texts: TokenTexts, offsets: Offsets) -> dict[str, Any]:
    """Four lists; beside the most probable tokens stands the one that was written."""
    return {
        "tokens": [texts.text(score.token) for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_top(score, texts) for score in scores],
        "text_offset": [offsets.next(score.token) for score in scores],
    }


def _top(score: Score, texts: TokenTexts) -> dict[str, float] | None:
    if score.logprob is None:
        return None
    found = {texts.text(score.token): score.logprob}
    for token, logprob in score.top:
        found.setdefault(texts.text(token), logprob)
    return found


def of_chat(scores: Sequence[Score], texts: TokenTexts) -> dict[str, Any]:
    content = [
        _token(score.token, score.logprob or 0.0, texts)
        | {"top_logprobs": [_token(token, logprob, texts) for token, logprob in score.top]}
        for score in scores
    ]
    return {"content": content, "refusal": None}


def _token(token: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    data = texts.bytes(token)
    return {"token": texts.text(token), "logprob": logprob, "bytes": list(data)}
