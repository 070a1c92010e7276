"""The output matrix of a chunk, written exactly in runs of tokens that are solved at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atlas_memory.memory.linear import Exact, Pairs, by_unknown, exact_of, solve
from atlas_memory.memory.native import functions as native
from atlas_memory.memory.native.library import served
from atlas_memory.memory.products import baddbmm, matmul
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.tree import Tensors, where


class Written(Protocol):
    """What a chunk has written. passed: W~^T e of the older pairs asked for and of every token,
    which teaches the hidden layer.
    """

    @property
    def passed(self) -> Tensor: ...

    def read(self, h: Tensor) -> Tensor:
        """W_t h_t for the features h of every token's query."""

    def end(self) -> Tensors:
        """W (and S) behind the chunk's last token, or behind the last one of every row."""


def write_runs(
    spec: MemorySpec,
    carried: Tensors,
    pairs: tuple[Tensor, Tensor],
    gates: Tensors,
    run: int,
    count: Tensor | None,
    older: int,
) -> Written:
    """carried: W, or W and S; pairs: features and targets [g, m + c - 1, ..]; gates: of
    `hoist_exact`; count: how many tokens of every row there are, where rows differ; older: how
    many of the pairs before the chunk learn from its start.
    """
    plain = not (spec.bias.hebbian or spec.stop_gradient) and count is None
    if plain and served((*carried, *pairs, *gates)):
        return native.Runs.of(carried, pairs, gates, run, spec.window, older)
    return _Runs.of(spec, carried, pairs, gates, run, count, older)


@dataclass(frozen=True)
class _Runs:
    """The runs as lists of pairs, one behind the other."""

    runs: list[tuple[Pairs, Exact]]
    passed: Tensor
    carried: Tensors
    count: Tensor | None
    length: int

    @staticmethod
    def of(
        spec: MemorySpec,
        carried: Tensors,
        pairs: tuple[Tensor, Tensor],
        gates: Tensors,
        run: int,
        count: Tensor | None,
        older: int,
    ) -> _Runs:
        runs: list[tuple[Pairs, Exact]] = []
        passed, back, start = [], spec.window - 1, carried
        if older:
            passed.append(_of_older(spec, carried[0], *(x[:, :older] for x in pairs)))
        cut = (_cut(spec, x, run) for x in pairs)
        for x, v, *own_gates in zip(*cut, *(x.split(run, dim=1) for x in gates), strict=True):
            if runs:
                start = runs[-1][0].end(runs[-1][1])
            c = exact_of(spec, own_gates, v.shape[2])
            known = solve(spec, start, x, v, c.before)
            own = known.e[:, back:] if spec.bias.hebbian else known.e[:, :: spec.window]
            passed.append(known.read_back(own, c.before))
            runs.append((known, c))
        return _Runs(runs, _joined(passed), carried, count, run)

    def read(self, h: Tensor) -> Tensor:
        parts = zip(self.runs, h.split(self.length, dim=1), strict=True)
        return _joined([known.read(x, c.now) for (known, c), x in parts])

    def end(self) -> Tensors:
        if self.count is None:
            known, c = self.runs[-1]
            return known.end(c)
        ended = self.carried
        for n, (known, c) in enumerate(self.runs):
            begin = n * self.length
            here = (self.count - begin).clamp(max=c.now.shape[1])
            ended = where(self.count > begin, known.end(c.at(here)), ended)
        return ended


def _of_older(spec: MemorySpec, W: Tensor, h: Tensor, target: Tensor) -> Tensor:
    """e W of pairs before the chunk, at its start."""
    e = target if spec.bias.hebbian else baddbmm(target, h, W.mT, alpha=-1)
    return matmul(e, W)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _cut(spec: MemorySpec, x: Tensor, run: int) -> Sequence[Tensor]:
    """Pairs [g, m + c - 1, ..] run by run, as `solve` wants them: cut once, for the gradient of
    each slice would be as large as all of them.
    """
    if not spec.bias.hebbian:
        return by_unknown(spec, x).split(run * spec.window, dim=1)
    back = spec.window - 1
    return [x[:, begin : begin + run + back] for begin in range(0, x.shape[1] - back, run)]
