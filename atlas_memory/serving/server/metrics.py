"""/metrics: what Prometheus asks for, in its text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from atlas_memory.serving.histogram import BOUNDS, Histogram
from atlas_memory.serving.server.service import Service

KIND = "text/plain; version=0.0.4; charset=utf-8"
Requests = Counter[tuple[str, str, int]]  # method, route, status


def text(service: Service, requests: Requests) -> str:
    return "\n".join([*_lines(service, requests), ""])


def _lines(service: Service, requests: Requests) -> Iterator[str]:
    engine, memories = service.engine, service.memories
    tally, load = engine.tally, engine.load
    answered = (
        (f'{{method="{method}",path="{path}",status="{status}"}}', count)
        for (method, path, status), count in sorted(requests.items())
    )
    yield from _family("requests_total", "counter", "Requests that were answered.", answered)
    tokens = {"read": tally.read, "reused": tally.reused, "written": tally.written}
    yield from _family(
        "tokens_total",
        "counter",
        "Tokens that were read, that were known already, and that were written.",
        ((f'{{kind="{kind}"}}', count) for kind, count in tokens.items()),
    )
    gauges = {
        "requests_running": ("Sequences that are being written.", load["running"]),
        "requests_waiting": ("Sequences that wait to be read.", load["waiting"]),
        "memories": ("Memories that are kept.", len(memories)),
        "memories_bytes": ("Bytes of all memories.", memories.num_bytes),
        "memories_resident_bytes": ("Bytes of memories in RAM.", memories.resident_bytes),
        "prefix_cache_bytes": ("Bytes of states for prompts to come.", engine.prefix_bytes),
    }
    for name, (what, value) in gauges.items():
        yield from _family(name, "gauge", what, [("", value)])
    yield from _histogram("first_token_seconds", "From a request to a token.", tally.first_token)


def _family(name: str, kind: str, what: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP atlas_{name} {what}"
    yield f"# TYPE atlas_{name} {kind}"
    for labels, value in samples:
        yield f"atlas_{name}{labels} {value}"


def _histogram(name: str, what: str, histogram: Histogram) -> Iterator[str]:
    yield from _family(name, "histogram", what, [])
    counts, below = list(histogram.counts), 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        below += count
        yield f'atlas_{name}_bucket{{le="{bound}"}} {below}'
    yield f"atlas_{name}_sum {histogram.total}"
    yield f"atlas_{name}_count {below}"
