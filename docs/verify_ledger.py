"""Check and recount an exported pbsdk ledger without pbsdk: Python's standard library only.

    pbsdk audit export RUN ledger.jsonl --answers; pbsdk audit certify RUN certificate.json  # by whoever has the run
    python verify_ledger.py ledger.jsonl [certificate.json]                                   # by whoever doubts it

Exit code 0: each record follows from the one before, and the counts printed are theirs. What isn't checked, it says.
"""  # noqa: INP001 - a script to be sent to somebody

import base64
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

FIELDS = "seq time session query state phase example prompt attempt latency read cut mass answer note chain"
AFTER = {"reserved": "", "done": "sent", "failed": "sent", "unknown": "sent", "sent": "reserved"}
AFTER["released"] = "reserved"
INSIDE = "forward", "backward"  # passes inside a model, of which every one counts
NAMES = {"answers": "done", "hits": "hit", "attempts": "sent", "failed": "failed", "unknown": "unknown"}


def need(holds: object, otherwise: str) -> None:
    """End with an error unless something holds."""
    if not holds:
        sys.exit(otherwise)


def sha(data: bytes | str) -> bytes:
    """Return SHA-256."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).digest()


def digest(text: str) -> str:
    """Return pbsdk's digest of a text."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(len(data).to_bytes(8, "little") + data, digest_size=16).hexdigest()


class Tally:
    """What the records read so far add up to."""

    def __init__(self, top: dict) -> None:
        self.top, self.seq, self.chain, self.first, self.states = top, 0, "0" * 64, "", Counter[str]()
        self.read, self.ran, self.held = Counter[str](), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        self.in_flight: dict[str, tuple[str, int]] = {}
        self.answers: dict[str, str] = {}
        self.parts: list[bytes] = []  # the roots of the Merkle tree's complete parts
        about = sorted(json.loads(top["model"]).items(), key=lambda item: (item[0] != "name", item))
        self.model = digest(json.dumps(dict(about), ensure_ascii=False))
        for name, text in top["prompts"].items():  # a text that isn't Unicode is kept as a JSON string
            holds = digest(text) == name or (text[:1] == '"' and digest(json.loads(text)) == name)
            need(holds, f"the text of prompt {name} was changed")

    def add(self, record: dict) -> None:
        """Check that a record fits, and count it."""
        *row, claimed = record.values()
        text, self.seq = json.dumps(row, separators=(",", ":")), self.seq + 1
        self.chain = sha(self.chain + text).hex()
        here, told = f"record {self.seq}", (" ".join(record), record["seq"], claimed)
        need(told == (FIELDS, self.seq, self.chain), f"{here} is missing or was changed")
        self.first, leaf, size = self.first or self.chain, sha("\0" + text), self.seq
        while not size & 1:
            leaf, size = sha(b"\1" + self.parts.pop() + leaf), size >> 1
        self.parts.append(leaf)
        state, query, note, read = (record[name] for name in ("state", "query", "note", "read"))
        before, guess = self.in_flight.pop(query, ("", 0)) if state in AFTER else ("", 0)
        need(before == AFTER.get(state, ""), f"{here}: this query can't be {state} now")
        need(state != "opened" or json.loads(note)["model"] == self.top["model"], f"{here}: another model was asked")
        if state == "reserved":
            parts = {"content": note.split(" ")[0], "model": self.model, "tokens": note.split(" ")[-1], "version": 1}
            key = sha(json.dumps(parts, separators=(",", ":"))).hex()
            need(key == query, f"{here}: the key is not that of its parts")
            need(record["prompt"] in self.top["prompts"], f"{here}: the text of its prompt is missing")
        need(state != "hit" or self.answers.get(query) == record["answer"], f"{here}: a hit on no such answer")
        if state in {"reserved", "sent"}:
            self.in_flight[query] = state, guess or read
        if state == "done":
            self.answers[query] = record["answer"]
        ran = state == "ran"  # passes inside the model: so many for each example of a group
        group = self.top["prompts"].get(record["example"], "").split("\n") if ran else [record["example"]]
        need(not ran or [str(len(group)), bool(group[0])] == [note, True], f"{here}: its examples are not listed")
        self.states[state] += 1
        self.read[state] += read
        # A pass is one example under one prompt that was sent, and not given back by a sure failure.
        scope = "fit" if record["phase"] in {"train", "validate", "refine"} else record["phase"]
        for example in group:
            pair = scope, example, record["prompt"]
            self.ran[pair] += {"sent": 1, "failed": -1, "ran": record["attempt"]}.get(state, 0)
            self.held[pair] += {"reserved": 1, "sent": -1, "released": -1}.get(state, 0)

    def counts(self) -> dict:
        """Return the counts, as a certificate says them."""
        used = Counter[tuple[str, str]]()
        for (scope, example, _), ran in self.ran.items():
            if ran > 0:
                used[scope, example] += ran if scope in INSIDE else 1
        each: dict[str, list[int]] = {scope: [] for scope, _ in used}
        for (scope, _), count in used.items():
            each[scope].append(count)
        sums = {name: self.states[state] for name, state in NAMES.items()} | {"tokens_read": self.read["done"]}
        most, passes = ({scope: fold(found) for scope, found in each.items()} for fold in (max, sum))
        return {"records": self.seq, "head": self.chain, **sums, "passes": passes, "most": most}

    def totals(self) -> list[int]:
        """Return what the folder's own counters must say: passes, held, sent, failed, tokens."""
        tokens = sum(self.read[state] for state in ("done", "unknown", "ran"))
        tokens += sum(guess for _, guess in self.in_flight.values())
        inside = sum(ran for pair, ran in self.ran.items() if pair[0] in INSIDE)
        passes = inside + sum(ran + self.held[pair] > 0 for pair, ran in self.ran.items() if pair[0] not in INSIDE)
        return [passes, sum(self.held.values()), self.states["sent"] + inside, self.states["failed"], tokens]

    def checkpoint(self) -> list[str]:
        """Return the lines that a checkpoint of these records has, but for its time."""
        *rest, root = self.parts
        for part in reversed(rest):
            root = sha(b"\1" + part + root)
        counts = json.dumps({"model": self.top["model"], **self.counts()}, sort_keys=True, separators=(",", ":"))
        lines = [f"pbsdk/run/{self.first[:32]}", str(self.seq), base64.b64encode(root).decode()]
        return [*lines, f"counts {sha(counts).hex()}"]


def main(ledger: str, certificate: str = "") -> None:
    """Check a ledger, and a certificate against it."""
    told = json.loads(Path(certificate).read_text(encoding="utf-8")) if certificate else {}
    note, then, here, record, shown = told.get("checkpoint", ""), None, [], {}, 0
    with Path(ledger).open(encoding="utf-8") as lines:
        tally = Tally(json.loads(next(lines)))
        for line in lines:
            before, record = record, json.loads(line)
            if "bytes" in record:  # of the answer whose record is the line before
                found = sha(base64.b64decode(record["bytes"])).hex()
                need(found == before.get("answer"), f"record {tally.seq}: its answer was changed")
                shown += 1
                continue
            tally.add(record)
            if tally.seq == told.get("records"):
                then, here = tally.counts(), tally.checkpoint()
    top, counts = tally.top, tally.counts()
    need((top["records"], top["head"]) == (tally.seq, tally.chain), f"record {tally.seq + 1} is missing: cut off")
    need(list(top["totals"].values()) == tally.totals(), f"the folder's totals are not {tally.totals()}")
    need(not top["answers"] or shown == tally.states["done"], f"{tally.states['done'] - shown} answers are missing")
    fits = not told or (then and all(told.get(name) == value for name, value in then.items()))
    need(fits, f"the certificate doesn't match the ledger, which says {json.dumps(then or counts)}")
    kept = [line for line in note.split("\n\n")[0].splitlines() if not line.startswith("time ")]
    need(not note or kept == here, f"the certificate's checkpoint is not that of the ledger: {here}")
    unchecked = {
        "the answers themselves: this export leaves them out (--answers), and holds their digests": not top["answers"],
        "whether the whole ledger was rewritten: that needs a certificate kept elsewhere": not told,
        "the Merkle root: this certificate has none": told and not note,
        "the signature: Python's standard library has no Ed25519; see `pbsdk audit verify --key`": "\n— " in note,
        "the time stamp: see `pbsdk audit verify --tsa`": told.get("timestamp"),
        "words, token sets and settings beside the records: see `pbsdk audit verify`": True,
    }
    sys.stderr.writelines(f"not checked: {what}\n" for what, applies in unchecked.items() if applies)
    sys.stdout.write(json.dumps(counts, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
