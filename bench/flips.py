"""What becomes of single bits flipped in the files that pbsdk reads: found, harmless for a reason that is named, or a fault.

    python bench/flips.py [FLIPS] [SEED]

FLIPS (3,000 unless told) are divided evenly among the kinds: a run folder's database, a model file, a recording, a
certificate, a file of members, a pool. The exit code is 1 if one raised an exception that isn't pbsdk's, or changed what is read unnoticed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.flips import KINDS, judged


def main() -> None:
    """Flip, and print what became of each kind."""
    given = list(map(int, sys.argv[1:]))
    flips, seed = given + [3000, 14][len(given) :]
    faults = 0
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            tally = judged(kind, Path(folder), flips // len(KINDS), seed)
        print(f"{kind}: {tally}", flush=True)
        faults += len(tally.crashed) + len(tally.unnoticed)
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
