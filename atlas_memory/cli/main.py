"""The command `atlas`: results on stdout, progress on stderr, 2 for a user's mistake."""

import sys
from typing import Annotated

import typer

from atlas_memory import __version__
from atlas_memory.cli import (
    data,
    demo,
    eval as eval_command,
    experiment,
    generate,
    inspect,
    list as list_command,
    memorize,
    memory,
    retrofit,
    serve,
    show,
    tokenizer,
    train,
)

app = typer.Typer(
    help="Sequence models that learn to memorize their context at test time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = {
    "list": list_command,
    "show": show,
    "demo": demo,
    "train": train,
    "retrofit": retrofit,
    "data": data,
    "memorize": memorize,
    "memory": memory,
    "generate": generate,
    "experiment": experiment,
    "eval": eval_command,
    "inspect": inspect,
    "serve": serve,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command.run)
app.add_typer(tokenizer.app, name="tokenizer")


def _version(asked: bool) -> None:
    if asked:
        print(f"atlas {__version__}")
        raise typer.Exit


@app.callback()
def atlas(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
) -> None:
    """Keeps `atlas` a group of commands however few of them there are."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command line; a ValueError is the user's, and its sentence is all they need."""
    try:
        app(arguments)
    except ValueError as error:
        print(f"atlas: {error}", file=sys.stderr)
        raise SystemExit(2) from error
