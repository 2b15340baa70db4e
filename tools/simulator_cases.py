"""The programs that the simulator is validated on: five kinds of model, trained and run, on two ranks with one processor core each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RANKS = 2


@dataclass(frozen=True)
class Case:
    """`source` is compiled under `plan`; trained where `loss` is a string ("" = the model returns its loss)."""

    name: str
    source: str
    plan: str
    loss: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        return self.loss is not None

    def compile(self, out: Path, cluster: Any, **options: Any) -> Any:
        """The folder `out`; returns what the driver compiled."""
        from dmlc.tools.folders import compile_folder

        loss = {"loss": self.loss} if self.trains else {}
        return compile_folder(self.source, out, RANKS, self.plan, cluster, self.trains, **loss, **self.options, **options)


HERE = "dmlc.tools.simulator_cases"
CASES = {
    case.name: case
    for case in (
        Case("perceptron train", f"{HERE}:perceptron", "dp=2", "mse"),
        Case("perceptron", f"{HERE}:perceptron", "tp=2"),
        Case("cnn train", f"{HERE}:cnn", "dp=2", "cross-entropy"),
        Case("cnn", f"{HERE}:cnn", "tp=2"),
        Case("gpt train", f"{HERE}:gpt", "dp=2", ""),
        Case("gpt", f"{HERE}:gpt_logits", "tp=2"),
        Case("bert train", f"{HERE}:bert", "dp=2", "cross-entropy"),
        Case("bert", f"{HERE}:bert", "tp=2"),
        Case("resnet train", f"{HERE}:resnet", "dp=2", "cross-entropy", {"dims": {"batch": 16}}),
        Case("resnet", f"{HERE}:resnet", "tp=2", options={"dims": {"batch": 16}}),
    )
}
SMALL = ("perceptron train", "cnn")


def perceptron():
    """Three layers of 784 -> 1536 -> 1536 -> 784, batch 128."""
    from dmlc.models import mlp

    return mlp.build((784, 1536, 1536, 784), 128)


def cnn():
    """32 and 64 channels on 8 x 8 digits, batch norm, batch 256."""
    from dmlc.models import digits

    return digits.build_cnn(32, 256)


def gpt():
    """Hidden 256, 4 layers, 8 heads, vocabulary 4096, 64 tokens, batch 8; returns its loss."""
    from dmlc.models import gpt_text

    return gpt_text.build(256, 4, 8, 1024, 4096, 64, 8)


def gpt_logits():
    """`gpt` without its loss."""
    from dmlc.models import gpt_text

    return gpt_text.build(256, 4, 8, 1024, 4096, 64, 8, loss=False)


def bert():
    """Hidden 256, 4 layers, 8 heads, vocabulary 4096, 64 tokens, batch 16."""
    from dmlc.models import bert

    return bert.build(256, 4, 8, 1024, 4096, 64, 16)


def resnet():
    """ResNet-18 on 64 x 64 images, free batch."""
    from dmlc.models import resnet

    return resnet.small()
