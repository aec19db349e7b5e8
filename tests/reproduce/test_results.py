"""Results beside the paper's: tables and pictures."""

import pytest

from pbsdk.reproduce.results import ResultCell, Results


def a_cell(**more):
    given = {
        "key": "", "dataset": "trec", "prompts": "paper", "pool": "trec", "method": "boosting", "k": 16, "seed": 13, "model": "m",
        "measure": "accuracy", "score": 0.5, "learners": 3, "classes": 6, "train": 96, "validation": 96, "test": 500,
        "n_prompts": 10, "passes": 1920, "calibration_error": 0.125, "metered": True, "asking_seconds": 60.0, "training_seconds": 0.5,
    }  # fmt: skip
    return ResultCell(**{**given, **more})


def test_tables_show_means_deviations_and_the_papers_figures():
    cells = [
        a_cell(score=0.6, seed=13),
        a_cell(score=0.7, seed=21),
        a_cell(method="voting", score=0.25),
        a_cell(dataset="mine", method="voting", score=1.0, pool="topic"),
    ]
    text = Results(tuple(cells), "m").to_markdown()
    assert "| method | TREC | mine |" in text
    assert "| PromptBoosting | 65.0 (7.1) / 81.6 (4.0) | - |" in text
    assert "| PromptVoting | 25.0 / 67.2 (6.7) | 100.0 |" in text
    assert "| TREC | trec | 16 | 2 | 96 + 96 | 500 | 10 | 1,920 | 60 s | 0.5 s |" in text
    found = Results(tuple(cells), "m").to_dict()["summaries"][0]
    assert found["mean"] == pytest.approx(65)
    assert found["paper"] == {"mean": 81.6, "deviation": 4.0}
    assert found["calibration_error"] == pytest.approx(12.5)


def test_calibration_errors_stand_in_a_table_of_their_own():
    cells = (
        a_cell(calibration_error=0.10),
        a_cell(calibration_error=0.20, seed=21),
        a_cell(dataset="mrpc", measure="F1", method="auto", calibration_error=0.031),
    )
    calibration = Results(cells, "m").to_markdown().split("Expected calibration errors")[1]
    assert "| method | TREC | MRPC |" in calibration
    assert "| PromptBoosting | 15.0 | - |" in calibration
    assert "| Auto | - | 3.1 |" in calibration


def test_costs_are_those_of_metered_passes():
    cells = (a_cell(method="auto"), a_cell(method="hidden-state", metered=False, passes=19_200))
    assert "| 10 | 1,920 |" in Results(cells, "m").to_markdown()


def test_two_sets_of_prompts_are_told_apart():
    cells = (a_cell(dataset="rte", score=0.6), a_cell(dataset="rte", prompts="own", score=0.5))
    text = Results(cells, "m").to_markdown()
    assert "| PromptBoosting, paper prompts | 60.0 / 60.0 (5.5) |" in text
    assert "| PromptBoosting, own prompts | 50.0 / 60.6 (2.0) |" in text


def test_the_picture_has_what_the_cells_say():
    sizes = [a_cell(method=f"k-{k}", k=k, train=6 * k, score=k / 512) for k in (32, 64)]
    prompts = [a_cell(method=f"boosting-{d}", n_prompts=min(d, 17), score=d / 20) for d in (1, 5, 20)]
    results = Results((a_cell(), *sizes, *prompts), "m")
    size, number = results.plot().axes
    drawn = {collection.get_label(): collection[0].get_xydata().tolist() for collection in number.containers}
    assert drawn == {"TREC": [[1, 5], [5, 25], [17, 100]]}
    assert size.containers[0][0].get_xydata().tolist() == [[16, 50], [32, 6.25], [64, 12.5]]
    (paper,) = [line for line in number.lines if "paper" in line.get_label()]
    assert paper.get_xydata().tolist() == [[1, 41.3], [5, 78.0], [20, 81.9]]
    assert Results((a_cell(),), "m").plot() is None
