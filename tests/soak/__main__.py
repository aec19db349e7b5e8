"""All troubles at length; `make soak`.

python -m soak [PART[:SIZE] ...]    (with `tests` on PYTHONPATH)

    kills:200        kills
    crowd:180        seconds that eight processes of 32 threads ask
    faulty:300       texts, of two prompts each
    gate:60          seconds that six processes of a team ask at two gates
    disk:1           every so-manieth call fails, in each of five ways
    growth:1000000   queries
"""

import sys
import time

from soak import crowd, disk, faulty, gate, growth, kills


def show(figures):
    line = "  ".join(
        f"{name} {value:,.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )
    print(f"    {line}", flush=True)


def fail_disk(step):
    problem = disk.can_run()
    return {"left out": problem} if problem else disk.run(step=step)


PARTS = {
    "kills": (200, kills.run),
    "crowd": (180, lambda seconds: crowd.run(8, 32, seconds=seconds, total=20 * seconds)),
    "faulty": (300, faulty.run),
    "gate": (60, gate.run),
    "disk": (1, fail_disk),
    "growth": (1_000_000, lambda count: growth.run(count, count // 10, report=show)[-1]),
}


def main(chosen):
    for part in chosen or PARTS:
        name, _, size = part.partition(":")
        usual, work = PARTS[name]
        size = int(size or usual)
        print(f"{name}:{size}", flush=True)
        began = time.monotonic()
        show(work(size))
        print(f"    kept, in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
