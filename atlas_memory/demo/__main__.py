"""`python -m atlas_memory.demo`: asked for as JSON on stdin, told as lines of JSON on stdout.

The server starts it, so that a demo holds up nobody's answers and ends when nobody listens.
"""

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from atlas_memory import demo

NICE = 5  # whoever is asked for an answer comes first


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends us in time
    os.nice(NICE)
    result = demo.run(**json.load(sys.stdin), watch=_progress)
    picture = asdict(result.picture)
    _tell({"object": "demo", **result.as_dict(), "picture": picture})


def _progress(read: int, total: int) -> None:
    _tell({"object": "demo.progress", "read": read, "total": total})


def _tell(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
