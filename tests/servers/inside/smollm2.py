"""SmolLM2 as a function of token numbers, for servers that know tensors: what comes next, as logits over the whole vocabulary."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)


class Next:
    """The model of a folder."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()

    @torch.inference_mode()
    def logits(self, ids: np.ndarray) -> np.ndarray:
        """Return the logits (1, vocabulary) of the token after `ids` (1, length)."""
        return self.model(torch.from_numpy(ids.astype(np.int64)), logits_to_keep=1).logits[:, -1].float().numpy()
