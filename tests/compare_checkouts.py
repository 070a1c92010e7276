"""Do two checkouts compute the same? Losses, outputs, states and files of every variant.

    python tests/compare_checkouts.py OLD NEW [VARIANT ..]

Each checkout trains a small model of every variant for ten steps, reads a text with it, decodes and
saves what it knows; then the new one reads the files of the old one and goes on from them. Every
number is compared bit for bit. A refactoring ends with "equal".
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path

import torch

STEPS, ROWS, TIME = 10, 2, 40
TEXT = [*b"a text whose length is no multiple of anything"]


def digest(*tensors):
    found = hashlib.sha256()
    for x in tensors:
        found.update(f"{x.dtype} {tuple(x.shape)}".encode())
        found.update(x.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def leaves(part):
    if isinstance(part, torch.Tensor):
        return [part]
    if is_dataclass(part):
        part = [getattr(part, f.name) for f in fields(part)]
    return chain.from_iterable(map(leaves, part)) if isinstance(part, list | tuple) else []


def small_model(variant):
    import atlas_memory as am

    torch.manual_seed(0)
    config = am.AtlasConfig.from_variant(variant, size="tiny", vocab_size=256)
    return am.AtlasForCausalLM(config)


def losses(model):
    """Of ten steps on one stream of random bytes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        ids = torch.randint(256, (ROWS, TIME), generator=generator)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()).hex())
    return found


@torch.no_grad()
def going_on(model, memory):
    """The next token's numbers. A tensor's place in a file decides how it is aligned in memory, and
    that the last bits of a product: `select` copies.
    """
    memory = memory.select(torch.arange(memory.rows))
    out = model(memory.last, past_key_values=memory.cache, use_cache=True)
    return digest(out.logits, *leaves(out.past_key_values.states))


def record(variant, folder):
    model = small_model(variant)
    return {"losses": losses(model)} | known(model.eval(), folder / variant)


@torch.no_grad()
def known(model, path):
    import atlas_memory as am

    memory = am.read(model, [TEXT])
    for token in b"one":
        memory = am.read(model, [token], memory)
    memory.save(f"{path}.memory")
    memory.cache.save(f"{path}.cache")
    torch.save(model.state_dict(), f"{path}.model")
    return {
        "weights": digest(*model.state_dict().values()),
        "outputs": digest(model(torch.tensor([TEXT])).logits),
        "states": digest(*leaves(memory.cache.states)),
        "bytes": memory.cache.num_bytes,
        "going on": going_on(model, memory),
    }


@torch.no_grad()
def reopen(variant, folder):
    """What the files of a checkout, this one or the other, hold."""
    import atlas_memory as am

    model = small_model(variant)
    model.load_state_dict(torch.load(folder / f"{variant}.model"))
    memory = am.Memory.load(folder / f"{variant}.memory", model.eval())
    cache = am.AtlasCache.load(folder / f"{variant}.cache")
    return {
        "memory file": going_on(model, memory),
        "cache file": digest(*leaves(cache.states)),
        "bytes": cache.num_bytes,
    }


def child(checkout, act, folder, variants):
    """Run `act` of this file with the package of `checkout`."""
    command = [sys.executable, __file__, f"--{act}", str(folder), *variants]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def act(action, folder, variants):
    import atlas_memory as am

    run = {"record": record, "reopen": reopen}[action]
    print(json.dumps({name: run(name, Path(folder)) for name in variants or am.variants()}))


def differences(old, new, what):
    for variant in sorted({*old, *new}):
        for name in {**old.get(variant, {}), **new.get(variant, {})}:
            pair = [side.get(variant, {}).get(name) for side in (old, new)]
            if pair[0] != pair[1]:
                yield f"{variant}: {what} {name}: {pair[0]} against {pair[1]}"


def compare(checkouts, variants):
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, side) for side in ("old", "new")]
        for folder in folders:
            folder.mkdir()
        pairs = list(zip(checkouts, folders, strict=True))
        old, new = (child(tree, "record", folder, variants) for tree, folder in pairs)
        found = [*differences(old, new, "recorded")]
        # The new checkout opens the files of both; the old one need not know the new one's.
        kept = child(checkouts[0], "reopen", folders[0], variants)
        for folder in folders:
            opened = child(checkouts[1], "reopen", folder, variants)
            found += differences(kept, opened, f"from the {folder.name} checkout's")
    return found, list(new)


if __name__ == "__main__":
    if sys.argv[1].startswith("--"):
        act(sys.argv[1][2:], sys.argv[2], sys.argv[3:])
    else:
        found, variants = compare([Path(p).resolve() for p in sys.argv[1:3]], sys.argv[3:])
        print("\n".join(found) or f"equal: {len(variants)} variants")
        sys.exit(bool(found))
