"""NVIDIA's client, asked by lines: URL MODEL. Each line of input is a text in JSON; each answer is its log-probabilities, as bytes.

Texts and numbers go as bytes or as JSON, by turns in all four ways.
"""

import json
import sys
from itertools import cycle, product

import numpy as np
import tritonclient.http as triton

ways = cycle(product((True, False), repeat=2))
with triton.InferenceServerClient(sys.argv[1].removeprefix("http://"), network_timeout=300) as client:
    for line in sys.stdin:
        binary_in, binary_out = next(ways)
        text = triton.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([json.loads(line)], dtype=np.object_), binary_data=binary_in)
        wish = triton.InferRequestedOutput("logprobs", binary_data=binary_out)
        values = client.infer(sys.argv[2], [text], outputs=[wish]).as_numpy("logprobs")
        sys.stdout.buffer.write(values.astype("<f4").tobytes())
        sys.stdout.buffer.flush()
