"""Whatever the server's own description allows, and what it does not, is answered without a 500."""

from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from served import client, serving, small

from atlas_memory.serving.server.limits import Limits

LIMITS = Limits(new_tokens=20, prompt_tokens=2_000, memories=200, upload=100_000, seconds=20)


def ask_everything(address, examples):
    """Requests of every operation, valid and not; the statuses that came back."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    return {(o.method, o.path): statuses(o, examples) for o in operations}


def statuses(operation, examples):
    found = set()

    def answered(case):
        if isinstance(case.body, dict):  # or nearly all would end in a 404
            for name in ("model", "memory"):
                case.body.pop(name, None)
        response = case.call()
        assert response.status_code != 500, response.text
        found.add(response.status_code)

    few = settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    for mode in schemathesis.GenerationMode:
        with suppress(Unsatisfiable):  # an operation that takes nothing cannot be given it wrong
            few(given(case=operation.as_strategy(generation_mode=mode))(answered))()
    return found


def check(examples):
    with serving(small(), limits=LIMITS) as address:
        found = ask_everything(address, examples)
        answer = client(address).completions.create(model="small", prompt="ok?", max_tokens=2)
        assert answer.usage.completion_tokens == 2
    assert 200 in found["post", "/v1/tokenize"]
    assert 400 in found["post", "/v1/completions"]
    return found


@pytest.mark.filterwarnings("ignore")
def test_nothing_in_the_description_breaks_the_server():
    assert len(check(4)) >= 13


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nothing_in_the_description_breaks_the_server_at_length():
    found = check(150)
    assert 200 in found["post", "/v1/completions"]
    for operation, answered in found.items():
        print(*operation, sorted(answered))
