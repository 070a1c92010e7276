"""The public names: lazily imported, known to type checkers, and short when they are printed."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from saved import byte_model

import atlas_memory as am
from atlas_memory.memory import GradientDescent

ROOT = Path(__file__).parents[1]


def declared():
    """The names that type checkers read, with the modules they come from."""
    tree = ast.parse((ROOT / "atlas_memory" / "__init__.py").read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    for node in block.body:
        for alias in node.names:
            assert alias.asname == alias.name, "only `X as X` is a public name to a type checker"
            yield alias.name, node.module


def test_type_checkers_and_python_know_the_same_names():
    known = dict(declared())
    assert sorted(known) == sorted(am.__all__)
    for name, home in known.items():
        own = getattr(am, name)
        assert own is getattr(sys.modules[home], name) or name == "demo"


TYPED = ROOT / "tests" / "typed_names.py"


def test_type_checkers_are_asked_for_every_name():
    assert {*am.__all__} <= {*re.findall(r"am\.(\w+)", TYPED.read_text())}


def test_pyright_knows_every_name(tmp_path):
    """As basedpyright, whose wheel brings the node that it runs on.

    transformers may have any name: to know them all takes pyright 3,000 files and 20 seconds.
    """
    pytest.importorskip("basedpyright", reason="pip install basedpyright to ask pyright too")
    stub = tmp_path / "stubs" / "transformers" / "__init__.pyi"
    stub.parent.mkdir(parents=True)
    stub.write_text("from typing import Any\ndef __getattr__(name: str) -> Any: ...\n")
    settings = {"include": [str(TYPED)], "extraPaths": [str(ROOT)], "stubPath": "stubs"}
    settings |= {"typeCheckingMode": "basic", "enableTypeIgnoreComments": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", tmp_path]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True)
    (error,) = json.loads(done.stdout)["generalDiagnostics"]
    assert error["message"] == '"nonsense" is not a known attribute of module "atlas_memory"'


def test_nonsense_is_no_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = am.nonsense


def test_the_version_is_told():
    done = subprocess.run(
        [sys.executable, "-m", "atlas_memory.cli", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"atlas {am.__version__}\n"


def test_values_are_printed_in_a_line():
    model = byte_model("atlas", num_hidden_layers=1)
    memory = am.read(model, [[*range(7)]])
    state = memory.cache.states[0]
    spec = model.config.memory_spec
    told = f"7 tokens, {memory.surprise:.2f} bits each, {memory.num_bytes:,} bytes"
    assert repr(memory) == f"Memory({told})"
    told = f"1 rows x 2 heads, 6 tokens, {state.memory.num_bytes:,} bytes"
    assert repr(state.memory) == f"MemoryState({told})"
    assert repr(state.conv) == "ConvState(tail [1, 3, 48])"
    assert repr(am.trace(model, [1, 2, 3])).startswith("Trace(3 tokens, ")
    assert repr(model.config).startswith("AtlasConfig(atlas: 1 layers of 16, 2 heads")
    assert eval(repr(spec), vars(am.memory)) == spec
    for value in (memory, state, spec, model.config, am.Gates(alpha=torch.ones(2, 3))):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 400


def test_a_spec_tells_what_is_not_as_always():
    spec = am.MemorySpec(optimizer=am.Muon(period=4), retention=am.NoRetention(), window=2)
    assert repr(spec) == (
        "MemorySpec(features=Identity(), architecture=MLP(), bias=L2(), optimizer=Muon(period=4), "
        "retention=NoRetention(), window=2, chunk=64)"
    )


def test_a_gate_that_is_not_used_is_refused_by_name():
    x = torch.ones(1, 1, 3, 4)
    gates = am.Gates(theta=torch.ones(1, 1, 3))
    spec = am.MemorySpec(architecture=am.Matrix(), optimizer=GradientDescent())
    with pytest.raises(ValueError, match=r"theta \[1, 1, 3\]: GradientDescent\(\) has no momentum"):
        am.memorize(x, x, x, gates, (torch.zeros(1, 4, 4),), spec)


def test_a_layer_refuses_what_does_not_fit_in_one_sentence():
    spec = am.MemorySpec(architecture=am.Matrix(), chunk=1)
    layer, wide = am.MemoryLayer(8, 2, spec), am.MemoryLayer(16, 2, spec)
    _, state = layer(torch.ones(2, 3, 8))
    with pytest.raises(ValueError, match=r"x \[2, 3, 9\]: this layer needs \[rows, tokens, 8\]"):
        layer(torch.ones(2, 3, 9))
    with pytest.raises(ValueError, match="the state holds 2 rows and the input 3; select"):
        layer(torch.ones(3, 3, 8), state)
    with pytest.raises(ValueError, match="the state is of a layer of width 8, this one has 16"):
        wide(torch.ones(2, 3, 16), state)
