"""atlas list and atlas show: numbers that are those of the real model."""

import json
import subprocess
import sys

import pytest
import torch
from commands import command_line
from saved import byte_model, save_model
from torch.utils.flop_counter import FlopCounterMode

from atlas_memory.cli.costs import costs, flops_per_token, parameters
from atlas_memory.cli.main import main
from atlas_memory.config import AtlasConfig
from atlas_memory.family import SIZES, VARIANTS, variants
from atlas_memory.layers import projections
from atlas_memory.model import AtlasForCausalLM

SIZED = ["transformer_plus", "omeganet", "atlas"]
GROWING = {"attention", "transformer_plus", "deeptransformer", "swdt", "dot"}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    assert exit_.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("variant", variants())
def test_show_counts_the_real_model(variant, capsys):
    shown = json.loads(run(capsys, "show", variant, "--size", "tiny", "--json"))
    config = AtlasConfig.from_variant(variant, "tiny")
    model = AtlasForCausalLM(config).eval()
    assert shown["parameters"] == sum(p.numel() for p in model.parameters()) < 1_000_000
    with torch.no_grad():
        ids = torch.zeros(1, 96, dtype=torch.long)
        one, many, more = (model(ids[:, :n]).past_key_values.num_bytes for n in (1, 64, 96))
    growth = shown["state bytes per token"]
    assert shown["state bytes"] == one
    assert more == many + 32 * growth
    assert (growth > 0) is (variant in GROWING)
    assert growth or many == one


@pytest.mark.parametrize("variant", variants())
def test_flops_are_near_what_runs(variant, monkeypatch):
    monkeypatch.setattr(projections, "BY_TAPS", ())  # the counter knows conv1d and not its sum
    config, time = AtlasConfig.from_variant(variant, "tiny"), 128  # a whole chunk
    model = AtlasForCausalLM(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, time, dtype=torch.long))
    measured = counter.get_total_flops() / time
    assert flops_per_token(config, time // 2) == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize("size", ["170m", "340m", "760m", "1.3b"])
@pytest.mark.parametrize("variant", SIZED)
def test_a_size_is_what_its_name_says(variant, size):
    config = AtlasConfig.from_variant(variant, size, vocab_size=32_000)
    assert parameters(config) == pytest.approx(SIZES[size].parameters, rel=0.08)


@pytest.mark.parametrize("variant", variants())
def test_small_is_small(variant):
    assert parameters(AtlasConfig.from_variant(variant, "small")) == pytest.approx(5e6, rel=0.08)


def test_show_answers_for_a_large_model():
    counted = costs(AtlasConfig.from_variant("atlas", "1.3b"), context=4096)
    assert counted.state_bytes > 10**8
    assert counted.state_bytes_per_token == 0


def test_show_for_people(capsys):
    shown = run(capsys, "show", "gla", "--size", "170m", "--vocab-size", "50257")
    lines = shown.splitlines()
    column = next(line for line in lines if line.startswith("name")).index("gla")
    assert lines[lines.index("table 1") + 1].startswith("  attentional bias ")
    at = {line[:column].rstrip(): line[column:] for line in lines}
    assert at["  memory write"] == "Diag(alpha_t) M_{t-1} + v_t k_t^T"
    assert at["vocabulary"] == "50,257"
    assert at["state bytes per token"] == "0"
    values = [line for line in lines if "  " in line.strip()]  # the others are headings
    assert all(line[column - 1] == " " != line[column] for line in values)


@pytest.mark.parametrize("variant", ["atlas", "samba", "atlas_mac", "transformer_plus"])
def test_show_writes_choices_and_sizes_as_people_do(variant, capsys):
    shown = run(capsys, "show", variant, "--size", "tiny")
    assert not set("{}[]'").intersection(shown.replace("M_{t-1}", "").replace("sum_{i>=c}", ""))
    assert "None" not in shown
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if "  " in line.strip())
    if variant == "atlas":
        assert lines["features"] == "elementwise(degree=2)"
        assert "KB)" in shown
    if variant == "samba":
        assert lines["mixers"].startswith("mamba")


def test_show_counts_what_is_set(capsys):
    words = ["show", "titans", "--size", "tiny", "--json"]
    plain, wide = json.loads(run(capsys, *words)), ["--set", "memory.architecture.expansion=8"]
    shown = json.loads(run(capsys, *words, *wide, "--set", "value_path=true"))
    config = AtlasConfig.from_variant(
        "titans", "tiny", value_path=True, **{"memory.architecture.expansion": 8}
    )
    assert shown["memory"]["architecture"]["expansion"] == 8
    assert shown["parameters"] == parameters(config) > plain["parameters"]
    assert shown["state bytes"] > 1.5 * plain["state bytes"]


def test_list_has_every_variant(capsys):
    head, *lines = run(capsys, "list").splitlines()
    assert head.split()[:2] == ["name", "model"]
    names = [line.split()[0] for line in lines]
    assert names == list(VARIANTS)
    rows = [json.loads(line) for line in run(capsys, "list", "--json").splitlines()]
    assert [row["name"] for row in rows] == list(VARIANTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "atls"], "unknown variant 'atls'; did you mean 'atlas'?"),
        (["show", "atlas", "--size", "2b"], "unknown size '2b'; choose from: tiny, small"),
        (["show", "atlas", "--vocab-size", "0"], "vocab_size=0"),
        (["show", "atlas", "--context", "0"], "--context 0: give at least one token"),
        (["show", "atlas", "--set", "window"], "--set 'window': write name=value"),
        (["show", "atlas", "--set", "memory.widow=2"], "unknown field 'widow' of the memory; did"),
        (["show", "atlas", "--set", "value_path=3"], "value_path=3: it must be true or false"),
        (["show", ".", "--set", "vocab_size=3"], ". is a folder, whose model is as it is"),
        (["show"], "Missing argument"),
        (["shw"], "No such command"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert captured.out == ""
    assert message in captured.err


def test_help_does_not_wait_for_torch():
    code = "import sys; from atlas_memory.cli.main import main\ntry: main(['--help'])\n"
    code += "except SystemExit: pass\nprint('torch' in sys.modules, 'transformers' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("variant", ["atlas", "atlas_plus", "atlas_mac", "atlas_mag", "atlas_mal"])
@pytest.mark.parametrize("size", ["170m", pytest.param("1.3b", marks=pytest.mark.slow)])
def test_no_state_is_larger_than_attention_s_of_4096_tokens(variant, size, capsys):
    shown = json.loads(run(capsys, "show", variant, "--size", size, "--json"))
    assert shown["state bytes"] <= shown["state bytes of Transformer++"]["4K"]


def test_show_a_run_is_what_its_model_keeps(tmp_path, capsys):
    """Of any training run: parameters, state, and what full attention of its width would keep."""
    model = byte_model("atlas")
    (run := tmp_path / "runs" / "mine").mkdir(parents=True)
    save_model(run / "model", model)
    code, printed, _ = command_line(capsys, "show", run, "--json")
    shown = json.loads(printed)
    assert code == 0
    assert (shown["run"], shown["width"]) == (str(run), model.config.hidden_size)
    assert shown["parameters"] == sum(p.numel() for p in model.parameters())
    one = model(torch.zeros(1, 1, dtype=torch.long), use_cache=True).past_key_values
    assert shown["state bytes"] == one.num_bytes
    key_and_value = 2 * 4 * model.config.hidden_size * model.config.num_hidden_layers
    assert shown["state bytes of Transformer++"]["4K"] == 4_096 * key_and_value
    assert command_line(capsys, "show", tmp_path)[0] == 2
