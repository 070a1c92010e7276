"""One small model for the tests of a module."""

import pytest
from served import small


@pytest.fixture(scope="module")
def loaded():
    return small()
