"""What one request may ask for, and what the server keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """body: bytes of a request. body_seconds: time to send them. seconds: time to answer.

    prompt_tokens, new_tokens: per answer. choices: answers of one request. memories: kept at once.
    shown: tokens of a memory whose surprise is kept. memory_bytes: of all memories; resident_bytes:
    of stored ones that are in RAM as well. upload: bytes of a request that brings a memory file.
    """

    body: int = 4 * 2**20
    body_seconds: float = 20.0
    seconds: float = 300.0
    prompt_tokens: int = 65_536
    new_tokens: int = 4_096
    choices: int = 32
    memories: int = 64
    shown: int = 16_384
    memory_bytes: int = 16 * 2**30
    resident_bytes: int = 2**30
    upload: int = 256 * 2**20
