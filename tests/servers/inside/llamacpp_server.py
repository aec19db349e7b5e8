"""llama.cpp's own server, as the wheel `xllamacpp` carries it: FILE NAME PORT."""

import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.model_alias, params.port = sys.argv[1], [sys.argv[2]], int(sys.argv[3])
# A slot for each prompt keeps what the prompt begins with.
params.n_ctx, params.n_parallel, params.verbosity = 20480, 10, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = True
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
