"""Check and recount an exported pbsdk ledger without pbsdk: Python's standard library only.

    pbsdk audit export RUN ledger.jsonl; pbsdk audit certify RUN certificate.json     # by whoever has the run
    python verify_ledger.py ledger.jsonl [certificate.json]                           # by whoever doubts it

Exit code 0: every record follows from the one before it, and the counts printed are what they add up to.
"""  # noqa: INP001 - a script to be sent to somebody

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

AFTER = {"reserved": "", "sent": "reserved", "released": "reserved"} | dict.fromkeys(
    ("done", "failed", "unknown"), "sent"
)
NAMES = {"answers": "done", "hits": "hit", "attempts": "sent", "failed": "failed", "unknown": "unknown"}


class Tally:
    """What the records read so far add up to."""

    def __init__(self) -> None:
        self.seq, self.chain, self.tokens = 0, "0" * 64, 0
        self.states: Counter[str] = Counter()
        self.in_flight: dict[str, str] = {}
        self.ran: Counter[tuple[str, str, str]] = Counter()

    def add(self, record: dict[str, Any]) -> None:
        """Check that a record fits, and count it."""
        *row, claimed = record.values()
        self.seq += 1
        self.chain = hashlib.sha256((self.chain + json.dumps(row, separators=(",", ":"))).encode()).hexdigest()
        if (record["seq"], claimed) != (self.seq, self.chain):
            sys.exit(f"record {self.seq} is missing or was changed")
        state, query = record["state"], record["query"]
        if state in AFTER and self.in_flight.pop(query, "") != AFTER[state]:
            sys.exit(f"record {self.seq}: this query can't be {state} now")
        if state in {"reserved", "sent"}:
            self.in_flight[query] = state
        self.states[state] += 1
        self.tokens += record["read"] if state == "done" else 0
        # A pass is one example under one prompt that was sent, and not given back by a sure failure.
        if state in {"sent", "failed"}:
            scope = "fit" if record["phase"] in {"train", "validate", "refine"} else record["phase"]
            self.ran[scope, record["example"], record["prompt"]] += 1 if state == "sent" else -1

    def counts(self) -> dict[str, Any]:
        """Return the counts, as a certificate says them."""
        used = Counter((scope, example) for (scope, example, _), ran in self.ran.items() if ran > 0)
        scopes = {scope for scope, _ in used}
        each = {scope: [count for (where, _), count in used.items() if where == scope] for scope in scopes}
        passes, most = ({scope: fold(each[scope]) for scope in scopes} for fold in (sum, max))
        sums = {name: self.states[state] for name, state in NAMES.items()} | {"tokens_read": self.tokens}
        return {"records": self.seq, "head": self.chain, **sums, "passes": passes, "most": most}


def main(ledger: str, certificate: str = "") -> None:
    """Check a ledger, and a certificate against it."""
    told = json.loads(Path(certificate).read_text(encoding="utf-8")) if certificate else {}
    tally, then = Tally(), None
    with Path(ledger).open(encoding="utf-8") as lines:
        top = json.loads(next(lines))
        for line in lines:
            tally.add(json.loads(line))
            then = tally.counts() if tally.seq == told.get("records") else then
    if (top["records"], top["head"]) != (tally.seq, tally.chain):
        sys.exit(f"record {tally.seq + 1} is missing: the ledger was cut off")
    if told and (then is None or any(told.get(name) != value for name, value in then.items())):
        sys.exit(f"the certificate doesn't match the ledger, which says {json.dumps(then or tally.counts())}")
    sys.stdout.write(json.dumps(tally.counts(), indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
