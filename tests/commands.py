"""Run a command in this process, as a shell would see it."""

import pytest

from atlas_memory.cli.main import main


def command_line(capsys, *words):
    """Exit code, stdout and stderr of `atlas WORDS`."""
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, words)])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err
