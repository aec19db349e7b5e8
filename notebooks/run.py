"""Run notebooks top to bottom, each in an empty folder and a fresh kernel of this very Python.

    python notebooks/run.py                                   # all, on the embedded model; outputs are written back
    python notebooks/run.py 01_quickstart.ipynb               # one of them
    PBSDK_BACKEND=fake python notebooks/run.py --to build     # on the stand-in, written elsewhere

`make notebooks` does the first. Times, widget states and versions are left out, so that a second run
changes no more than it must.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets import default

HERE = Path(__file__).parent


class _OwnKernel(AsyncKernelManager):
    """A kernel of this Python: no folder is searched for others."""

    @default("kernel_spec_manager")
    def _none_but_the_native(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)


def execute(file: Path) -> NotebookNode:
    """Return the notebook with the outputs of a run in an empty folder."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_manager_class=_OwnKernel,
            extra_arguments=["--log-level=ERROR"],
            timeout=900,
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks by name; all if none is named")
    parser.add_argument("--to", type=Path, default=HERE, help="the folder to write to")
    arguments = parser.parse_args()
    os.environ.setdefault("PBSDK_BACKEND", "smollm2")
    os.environ["TQDM_DISABLE"] = "1"  # bars are for people
    arguments.to.mkdir(parents=True, exist_ok=True)
    for file in [HERE / name for name in arguments.names] or sorted(HERE.glob("*.ipynb")):
        print(f"{file.name} on {os.environ['PBSDK_BACKEND']}", file=sys.stderr, flush=True)
        nbformat.write(execute(file), arguments.to / file.name)


if __name__ == "__main__":
    main()
