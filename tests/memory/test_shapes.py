"""The shapes that docstrings tell are those that the engine and the layers are called with."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from models import build, text

PACKAGE = Path(__file__).parents[2] / "atlas_memory"
FILES = [*PACKAGE.glob("memory/*.py"), *PACKAGE.glob("layers/*.py")]
SHAPE = r"\[[\w .+*-]+(?:, [\w .+*-]+)*\]"
# keys, values [b, h, t, d], exists [g, N] or [g, t, N], alpha [b, h, t] ([h] for FixedRetention)
TOLD = re.compile(rf"((?:\w+(?:, | and )?)+) ({SHAPE}(?: or {SHAPE})*(?: \([^)]*\))?)")


def told(node, lines):
    """Argument or field -> the shapes that a docstring, or a comment beside it, gives it."""
    if isinstance(node, ast.ClassDef):
        names = [field.target.id for field in node.body if isinstance(field, ast.AnnAssign)]
        beside = []
    else:
        names = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
        beside = [(a.arg, lines[a.lineno - 1].partition("#")[2]) for a in node.args.args]
    shapes, text = {}, ast.get_docstring(node) or ""
    for group, alternatives in TOLD.findall(text):
        axes = [shape[1:-1].split(", ") for shape in re.findall(SHAPE, alternatives)]
        if "have no t" in text:
            axes += [[axis for axis in own if axis != "t"] for own in axes]
        for name in re.split(r", | and ", group):
            if name in names:
                shapes.setdefault(name, []).extend(axes)
    for name, comment in beside:
        if found := re.search(r"\[(.+)\]", comment):
            shapes.setdefault(name, []).append(found[1].split(", "))
    return shapes


@cache
def shapes_of_the_package():
    """(file, first line) of functions, and names of classes -> shapes."""
    found = {}
    for file in FILES:
        source = file.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                lines = [node.lineno, *(d.lineno for d in node.decorator_list)]
                key = (str(file), min(lines)) if isinstance(node, ast.FunctionDef) else node.name
                if shapes := told(node, source.splitlines()):
                    found[key] = shapes
    return found


def fits(shape, axes, sizes):
    """Whether a tensor has these axes; letters keep the size they have in the call."""
    open_at = next((i for i, axis in enumerate(axes) if set(axis) == {"."}), None)
    if open_at is not None:  # any number of axes there
        head, tail = axes[:open_at], axes[open_at + 1 :]
        if len(shape) < len(head) + len(tail):
            return False
        shape = (*shape[: len(head)], *shape[len(shape) - len(tail) :])
        axes = head + tail
    if len(shape) != len(axes):
        return False
    known = dict(sizes)
    for size, axis in zip(shape, axes, strict=True):
        expected = int(axis) if axis.isdigit() else known.setdefault(axis, size)
        if (axis.isidentifier() or axis.isdigit()) and size != expected:
            return False
    sizes.update(known)
    return True


class Watch:
    """Compares every call with what is told of it."""

    def __init__(self):
        self.shapes, self.seen, self.wrong = shapes_of_the_package(), set(), set()

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event == "call" and (key := (code.co_filename, code.co_firstlineno)) in self.shapes:
            self.compare(key, code.co_qualname, frame.f_locals)
        made = frame.f_locals.get("self") if code.co_name == "__init__" else None
        if event == "return" and (key := type(made).__name__) in self.shapes:
            self.compare(key, key, vars(made))

    def compare(self, key, name, values):
        sizes = {}
        for argument, alternatives in self.shapes[key].items():
            value = values.get(argument)
            if isinstance(value, torch.Tensor):
                self.seen.add(f"{name} {argument}")
                if not any(fits(value.shape, axes, sizes) for axes in alternatives):
                    given = f"{list(value.shape)} for {alternatives}, {sizes}"
                    self.wrong.add(f"{name}: {argument} is {given}")


def watched(model, ids):
    """A step of training, and a reading that goes on token by token and in a piece."""
    watch = Watch()
    sys.setprofile(watch)
    try:
        model.train()(ids, labels=ids).loss.backward()
        with torch.no_grad():
            out = model.eval()(ids, use_cache=True)
            for piece in (ids[:, :1], ids[:, 1:2], ids[:, :7]):
                out = model(piece, use_cache=True, past_key_values=out.past_key_values)
    finally:
        sys.setprofile(None)
    return watch


@pytest.mark.parametrize(
    "variant",
    ["atlas", "atlas_mac", "dla", "swdt", "gated_deltanet", "memora", "mesa", "mamba2"],
)
def test_shapes_are_as_told(variant):
    model = build(variant)
    watch = watched(model, text(model, 2, 37))
    assert watch.wrong == set()
    assert len(watch.seen) >= 10


def test_a_wrong_shape_is_seen():
    sizes = {"b": 2}
    assert fits((2, 3, 4), ["b", "t", "d"], sizes)
    assert sizes == {"b": 2, "t": 3, "d": 4}
    assert not fits((3, 3), ["b", "t"], {"b": 2})
    assert not fits((2, 3), ["b"], {})
    assert not fits((2, 2), ["b", "1"], {})
    assert fits((5, 2, 3), ["..", "t"], {"t": 3})
    assert not fits((5, 2, 3), ["..", "t"], {"t": 4})
    assert fits((2, 3), ["b", "c - 1"], {})
