"""A stand-in for a server of tensors, as Triton and KServe are, and a tokenizer for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from tokenizers.decoders import ByteLevel

from helpers.servers import Reply, json_reply


def write_tokenizer(folder: Path) -> Path:
    """Write a small byte-level tokenizer in RoBERTa's manner, of 400 tokens, and return the folder."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(
        ["The weather is fine today. It was good, it was bad. Rain. The bank pays well."] * 3, trainer
    )
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made.save(str(folder / "tokenizer.json"))
    return folder


@dataclass
class Triton:
    """A model of token numbers: whatever it reads, it answers with numbers made from it."""

    columns: int = 400
    binary: bool = True
    every_place: bool = True
    datatype: str = "FP32"
    name: str = "roberta"
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    change: object = None
    read: list[list[int]] = field(default_factory=list)

    def __call__(self, asked):
        if asked.method == "GET":
            shape = [-1, -1, self.columns] if self.every_place else [-1, self.columns]
            return json_reply({
                "name": self.name, "versions": ["3"], "platform": "onnxruntime_onnx",
                "inputs": [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in self.inputs],
                "outputs": [{"name": "logits", "datatype": self.datatype, "shape": shape}],
            })  # fmt: skip
        tensors = {tensor["name"]: tensor for tensor in asked.json["inputs"]}
        assert set(tensors) == set(self.inputs)
        ids = tensors["input_ids"]["data"]
        assert tensors["input_ids"]["shape"] == [1, len(ids)]
        self.read.append(ids)
        seed = np.random.SeedSequence(ids)
        logits = np.random.default_rng(seed).normal(size=(1, len(ids), self.columns)) * 3
        if not self.every_place:
            logits = logits[:, ids.index(4)]
        kind = {"FP32": "<f4", "FP64": "<f8", "FP16": "<f2", "BF16": "<u2"}[self.datatype]
        values = (
            (logits.astype("<f4").view("<u4") >> 16).astype("<u2") if self.datatype == "BF16" else logits.astype(kind)
        )
        output = {"name": "logits", "datatype": self.datatype, "shape": list(values.shape)}
        answer = {"model_name": self.name, "model_version": "3", "outputs": [output]}
        if self.change:
            self.change(answer, output)
        if not self.binary:
            output["data"] = values.ravel().tolist()
            return json_reply(answer)
        data = values.tobytes()
        output["parameters"] = {"binary_data_size": len(data)}
        head = json.dumps(answer).encode()
        return Reply(200, head + data, {"Inference-Header-Content-Length": str(len(head))})
