"""The licence of every package that pbsdk needs, checked against those that are allowed.

    python .ci/licences.py [EXTRA ...]

Follows pbsdk's requirements, with the extras that `make setup` installs unless others are named, through what is installed,
and prints name, version and licence. The exit code is 1 if a package's licence is not on the list or can't be found out.
A package says its licence as an expression (`License-Expression`), in classifiers, or in words; the first of these counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

SETUP = ("demo", "dev", "docs", "plot", "remote", "serve")

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU",
    "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip
"""Permissive licences, and MPL-2.0, which asks something only of who changes the package's own files."""

WORDS = {
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "apache": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "the mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "zlib/libpng license": "Zlib",
}
"""What packages write for a licence, in small letters."""

UMBRELLAS = {"OSI Approved", "DFSG approved"}
"""Classifiers that name no licence."""

READ = {"litellm": "MIT", "matplotlib": "PSF-2.0"}
"""Packages whose metadata hold a text instead of a name; somebody has read it."""


def needed(extras: tuple[str, ...]) -> Iterator[Distribution]:
    """Yield pbsdk's requirements that are installed, and theirs, each once."""
    waiting = [("pbsdk", extras)]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    found: dict[str, Distribution] = {}
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            here = found.setdefault(name, distribution(name))
        except PackageNotFoundError:
            continue  # for another platform or Python, or an extra that isn't installed
        for line in here.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in ("", *wanted)):
                waiting.append((_plain(requirement.name), tuple(sorted(requirement.extras))))
    yield from (found[name] for name in sorted(found) if name != "pbsdk")


def licence(package: Distribution) -> str:
    """Return a package's licence as an expression, or its own words where they are not known."""
    about = package.metadata
    name = _plain(about["Name"])
    if name in READ:
        return READ[name]
    if about["License-Expression"]:
        return str(about["License-Expression"])
    named = [line.split(" :: ")[-1] for line in about.get_all("Classifier") or [] if line.startswith("License :: ")]
    said = [one for one in named if one not in UMBRELLAS] or [(about["License"] or "none found").splitlines()[0]]
    return " AND ".join(WORDS.get(one.lower().strip(), one) for one in said)


def allowed(expression: str) -> bool:
    """Return whether an expression allows a choice of licences that are all on the list.

    >>> allowed("MIT OR GPL-3.0-only"), allowed("MIT AND GPL-3.0-only"), allowed("MIT AND (GPL-3.0-only OR ISC)")
    (True, False, True)
    """
    while "(" in expression:
        expression = re.sub(r"\(([^()]*)\)", lambda inner: "MIT" if allowed(inner[1]) else "no", expression)
    choices = re.split(r"\s+OR\s+", expression)
    return any(all(one.strip() in ALLOWED for one in re.split(r"\s+AND\s+", choice)) for choice in choices)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print the list, and fail on what isn't allowed."""
    rows = [(one.metadata["Name"], one.version, licence(one)) for one in needed(tuple(sys.argv[1:]) or SETUP)]
    for name, version, said in rows:
        print(f"{name:28} {version:16} {said}{'' if allowed(said) else '   NOT ALLOWED'}")
    refused = [name for name, _, said in rows if not allowed(said)]
    if refused:
        sys.exit(f"{len(refused)} of {len(rows)} packages have a licence that is not on the list: {', '.join(refused)}")
    print(f"{len(rows)} packages, all of them under a licence on the list")


if __name__ == "__main__":
    main()
