"""`pbsdk why-miss`."""

import json

from helpers.commands import called


def test_why_miss_says_which_part_differs(trained):
    found = json.loads(called("why-miss", trained / "run", "--json").stdout)
    assert [(miss["part"], miss["queries"]) for miss in found["misses"]] == [("nothing like it was known", 128)]
    assert "128" in called("why-miss", trained / "run", "--against", trained / "run").stdout
