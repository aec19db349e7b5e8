import pytest

from pbsdk.learning.estimates import Estimate, largest_share, wilson


@pytest.mark.parametrize(
    ("right", "count", "low", "high"), [(9, 12, 0.468, 0.911), (0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0)]
)
def test_the_interval_is_wilsons(right, count, low, high):
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-4)


def test_an_interval_that_holds_chance_gives_a_warning_and_one_above_it_none():
    assert "holds 50.0%" in Estimate("validation", 0.75, 12, 0.5).warning
    assert Estimate("validation", 0.75, 120, 0.5).warning is None
    assert "this is below 90.0%" in Estimate("cross-validated", 0.5, 100, 0.9).warning


def test_the_plain_form_has_what_the_text_says():
    found = Estimate("cross-validated", 0.75, 12, 0.25).to_dict()
    assert (found["low"], found["high"]) == pytest.approx((0.467695, 0.911058), abs=1e-5)
    assert (found["kind"], found["texts"], found["chance"], found["warning"]) == ("cross-validated", 12, 0.25, None)
    assert largest_share([2, 0, 2]) == pytest.approx(2 / 3)
