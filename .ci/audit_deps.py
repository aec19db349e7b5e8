"""Known vulnerabilities of what is installed here, looked up by pip-audit.

    python .ci/audit_deps.py PIP_AUDIT

PIP_AUDIT is the program, which may be in an environment of its own. It asks pypi.org about every package; where that can't be
reached nothing was checked, and the exit code is 2. It is 1 if a package has a known vulnerability.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ACCEPTED = ("CVE-2025-69872",)
"""diskcache's pickling, which pbsdk disables: see SECURITY.md."""


def main() -> None:
    """Ask, and say what was found or that nothing was."""
    options = ["--format", "json", "--progress-spinner", "off", "--skip-editable"]
    options += [word for place in sys.path if any(Path(place).glob("*.dist-info")) for word in ("--path", place)]
    options += [word for name in ACCEPTED for word in ("--ignore-vuln", name)]
    done = subprocess.run([sys.argv[1], *options], capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(
            f"nothing was checked: pip-audit could not ask its service at pypi.org ({why[:300]}); run this where it can"
        )
        sys.exit(2)
    skipped = [f"{one['name']}: {one['skip_reason']}" for one in packages if "skip_reason" in one]
    if len(skipped) == len(packages):  # an index without pypi.org's service says of each that it isn't there
        why = f"; the first: {skipped[0][:300]}" if skipped else ""
        print(
            f"nothing was checked: none of {len(packages)} packages could be looked up{why}; run this where pypi.org can be reached"
        )
        sys.exit(2)
    found = [(one, hole) for one in packages for hole in one.get("vulns", [])]
    for line in skipped:
        print(f"not checked: {line}")
    for one, hole in found:
        cure = ", ".join(hole["fix_versions"]) or "none yet"
        print(f"{one['name']} {one['version']}: {hole['id']} ({', '.join(hole['aliases'])}); fixed in {cure}")
    accepted = ", ".join(ACCEPTED)
    print(
        f"{len(packages) - len(skipped)} packages checked, {len(found)} known vulnerabilities besides {accepted} (SECURITY.md)"
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
