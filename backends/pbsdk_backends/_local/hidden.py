"""The model from inside: its last hidden states, for comparisons with what a black box can do.

The body is run without its vocabulary head, rows side by side, each text as often as it is asked about. This is the plain way:
nothing is shared and nothing is packed, since only comparisons need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pbsdk.backend import Floats
from pbsdk_backends._local.passes import batches
from pbsdk_backends._local.sharing import single
from pbsdk_backends._tokens.reading import Reading

__all__ = ["last_hidden_states"]


def last_hidden_states(model: Any, readings: Sequence[Reading], *, causal: bool, batch_tokens: int) -> Floats:
    """Return the last hidden state (N, H) of each reading at the place that is asked."""
    states: dict[int, Floats] = {}
    extra = {"use_cache": False} if causal else {}
    rows = [single(owner, reading) for owner, reading in enumerate(readings)]
    for batch in batches(rows, batch_tokens, padded=True):
        width = max(len(row.ids) for row in batch)
        ids = [row.ids + [row.ids[0]] * (width - len(row.ids)) for row in batch]
        mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in batch]
        with torch.inference_mode():
            given = {"input_ids": ids, "attention_mask": mask}
            tensors = {name: torch.tensor(value, device=model.device) for name, value in given.items()}
            hidden = model.base_model(**tensors, **extra)[0]  # (B, T, H)
        for place, row in enumerate(batch):
            states[row.owners[0]] = hidden[place, row.asks[0]].double().cpu().numpy()
    return np.array([states[owner] for owner in range(len(readings))])
