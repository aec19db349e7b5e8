"""Try them all: `make test-servers`.

python -m servers [NAME ...] [--labelled N] [--test N] [--prompts N] [--least SHARE] [--folder FOLDER]    (with `tests` on PYTHONPATH)

Prints a row for each server and way of asking as soon as it is known, and writes the table to FOLDER/results.md. A server that can't be installed or started
is left out with its reason; one that does something wrong fails the command.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from servers.environment import Environment, LeftOut
from servers.trial import Row, Server, Size, tried

NAMES = ("llamacpp", "vllm", "litellm", "kserve", "mlserver", "triton", "hub", "tritonclient")
HEAD = "| server | asked by | shows | prompts | accuracy | PromptBoosting | requests |\n|---|---|---|--:|--:|--:|--:|"


def tried_all(name: str, folder: Path, size: Size) -> Iterator[Row]:
    """Yield what came of each way of asking one server."""
    server: Server = importlib.import_module(f"servers.{name}").SERVER
    environment = Environment(folder / name, server.steps, server.finish)
    environment.fill()
    title = f"{server.name} (`{server.package}` {environment.version(server.package)})"
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        with server.start(environment, logs) as running:
            for number, way in enumerate(server.ways):
                yield tried(title, way, running, place / str(number), size)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=[], help=f"which: {', '.join(NAMES)}; all by default"
    )
    parser.add_argument("--labelled", type=int, default=Size.labelled, help="how many texts to learn from")
    parser.add_argument("--test", type=int, default=Size.tested, help="how many texts to test on")
    parser.add_argument("--prompts", type=int, default=Size.prompts, help="how many prompts at most")
    parser.add_argument(
        "--least", type=float, default=Size.least, help="what of each way's least accuracy must be reached"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/servers"), help="where environments and results are kept"
    )
    options = parser.parse_args()
    size = Size(options.labelled, options.test, options.prompts, options.least)
    folder = options.folder.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the server under way is ended too
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{datetime.now(UTC):%Y-%m-%d}: {size.labelled} texts to learn from, {size.tested} to test on\n"
    lines, wrong = [about, HEAD], False
    print("\n".join(lines), flush=True)
    for name in options.names or NAMES:
        found = []
        try:
            for row in tried_all(name, folder, size):
                found.append(written(row))
                print(found[-1], flush=True)
        except LeftOut as reason:
            found.append(f"| {name} | left out: {reason} | | | | | |")
            print(found[-1], flush=True)
        except Exception:  # noqa: BLE001 - the others are tried all the same
            traceback.print_exc()
            wrong = True
        lines += found
    (folder / "results.md").write_text("\n".join(lines) + "\n")
    return int(wrong)


def written(row: Row) -> str:
    return (
        f"| {row.server} | {row.way} | {row.shown} | {row.prompts} | {row.accuracy:.1%} | {row.boosting:.1%} "
        f"| {row.counted:,} = {row.ledger:,} |"
    )


if __name__ == "__main__":
    sys.exit(main())
