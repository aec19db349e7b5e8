"""What it costs to charge passes inside a model: those of a search by evolution with the published settings.

    python bench/lots.py

8,000 evaluations of 64 training examples, in generations of 20: 400 lots, 512,000 passes. Times are processor time.
"""

import tempfile
import time

from pbsdk.backend import digest
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.passes import PassMeter
from pbsdk.testing import FakeBackend

EXAMPLES, EVALUATIONS, GENERATION = 64, 8000, 20


def main() -> None:
    """Charge, report and verify."""
    with tempfile.TemporaryDirectory() as run, MeteredBackend(FakeBackend(), run, None) as lm:
        meter = PassMeter(lm.ledger, "bbt")
        passes = {digest(str(number)): GENERATION for number in range(EXAMPLES)}
        lots = EVALUATIONS // GENERATION
        began = time.process_time()
        for _ in range(lots):
            meter.charge(passes)
        charged = time.process_time()
        report = lm.audit()
        told = time.process_time()
        lm.ledger.verify()
        verified = time.process_time()
        (phase,) = report.phases
        print(f"{phase.passes:,} passes of {phase.examples} examples in {report.records} records")
        print(f"charging: {1000 * (charged - began) / lots:.2f} ms a lot")
        print(f"report: {1000 * (told - charged):.1f} ms; verification: {1000 * (verified - told):.1f} ms")


if __name__ == "__main__":
    main()
