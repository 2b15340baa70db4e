"""A PyTorch model to be trained: its loss traced with it, what an export in evaluation mode lacks, and one step in plain PyTorch to compare with."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree

from dmlc.frontend.torch_graph import operator_name
from dmlc.frontend.torch_reference import Reference
from dmlc.frontend.torch_sizes import input_leaves
from dmlc.ir.location import DmlcError, Loc

TARGET = "target"


# ---------------------------------------------------------------- a loss of the user's own


def load_loss(source: str) -> Callable[[Any, Any], torch.Tensor]:
    """The function that `package.module:name` or `file.py:name` names: (the model's output, target) -> scalar."""
    from dmlc.frontend.torch_export import load_function

    place, _, name = source.rpartition(":")
    loc = Loc(source)
    if not place or not name:
        raise DmlcError("a loss is cross-entropy, mse, bce, or module:function", loc)
    return load_function(place, name, loc)


def with_loss(
    module: torch.nn.Module, args: tuple, kwargs: Mapping[str, Any], loss: Callable, class_dim: int, source: str
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """(a module of the same parameters and names that takes a further input `target` and returns the loss, its keyword arguments).

    The example target is the builder's own `target` argument, else made up: class numbers in the shape of the output without its `class_dim`,
    or where the function does not take those, floats in the output's shape.
    """
    kwargs = dict(kwargs)
    given = kwargs.pop(TARGET, None)
    parameters = list(inspect.signature(module.forward).parameters.values())
    if any(p.name == TARGET for p in parameters):
        raise DmlcError(f"the model itself takes an input '{TARGET}'; let it return its loss, and leave --loss out", Loc(source))
    if given is None:
        given = _made_up_target(module, args, kwargs, loss, class_dim, source)

    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        target = kwargs.pop(TARGET)
        return loss(module_forward(self, *args, **kwargs), target)

    module_forward = type(module).forward
    at = next((i for i, p in enumerate(parameters) if p.kind == p.VAR_KEYWORD), len(parameters))
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    more = inspect.Parameter(TARGET, inspect.Parameter.KEYWORD_ONLY)
    forward.__signature__ = inspect.Signature([own, *parameters[:at], more, *parameters[at:]])  # type: ignore[attr-defined]
    wrapped = copy.copy(module)
    wrapped.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})
    return wrapped, {**kwargs, TARGET: given}


def _made_up_target(module: torch.nn.Module, args: tuple, kwargs: dict, loss: Callable, class_dim: int, source: str) -> torch.Tensor:
    with torch.no_grad():
        output = module(*args, **kwargs)
        first = output if isinstance(output, torch.Tensor) else next(iter(pytree.tree_leaves(output)))
        classes = list(first.shape)
        if classes:
            classes.pop(class_dim)
        candidates = [torch.zeros(classes, dtype=torch.int64), torch.full_like(first, 0.5)]
        errors = []
        for target in candidates:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # a loss that only warns of sizes that do not fit
                    value = loss(output, target)
            except Exception as e:  # the user's function may refuse a target in any way
                errors.append(f"{target.dtype} {tuple(target.shape)}: {type(e).__name__}: {e}".splitlines()[0])
                continue
            if isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point():
                return target
            errors.append(f"{target.dtype} {tuple(target.shape)}: gives no float scalar")
    note = f"add a '{TARGET}' to the keyword arguments that the model's function returns"
    raise DmlcError("no example target fits the loss function", Loc(source), (*errors, note))


# ---------------------------------------------------------------- what an export in evaluation mode lacks


def evaluation_remark(program: torch.export.ExportedProgram) -> str:
    """What training would change but the exported program fixes as in evaluation: one sentence, or nothing."""
    dropouts, norms = 0, 0
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = operator_name(node).split(".")[0]
        schema = getattr(node.target, "_schema", None)
        given = {a.name: node.args[i] if i < len(node.args) else a.default_value for i, a in enumerate(schema.arguments)} if schema else {}
        dropouts += "dropout" in name and given.get("p", 0) != 0 and given.get("train") is False
        norms += (name == "batch_norm" and given.get("training") is False) or "no_training" in name
    found = [f"{n} {what}{'s' if n > 1 else ''}" for n, what in ((dropouts, "dropout"), (norms, "batch norm")) if n]
    if not found:
        return ""
    return f"the program was exported in evaluation mode: {' and '.join(found)} stay as in evaluation (export it after module.train() to train them)"


# ---------------------------------------------------------------- one step in plain PyTorch


class TrainingStep:
    """One step of plain PyTorch with every float as float64, by the request in the module attribute `dmlc.train`."""

    def __init__(self, reference: Reference, train: Mapping[str, Any]):
        assert reference.eager is not None
        self.reference, self.train = reference, train
        self.module = copy.deepcopy(reference.eager).double().train()

    def __call__(self, inputs: Mapping[str, Any], lr: float, weight_decay: float, max_norm: float) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """(loss and gradient norm before clipping, each parameter's change by all its names in the model)."""
        args, kwargs = self.reference.arguments(inputs, double=True)
        every = dict(self.module.named_parameters(remove_duplicate=False))
        before = {name: p.detach().clone() for name, p in every.items()}
        optimizer = self.optimizer(lr, weight_decay)
        with self.reference.drawing():
            loss = self.reference.in_double(lambda: self._differentiated(args, kwargs, inputs))
        limit = max_norm if self.train.get("clip", True) else float("inf")
        norm = torch.nn.utils.clip_grad_norm_([p for p in self.module.parameters() if p.grad is not None], limit)
        optimizer.step()
        return {"loss": float(loss.detach()), "grad_norm": float(norm)}, {name: p.detach() - before[name] for name, p in every.items()}

    def _differentiated(self, args: tuple, kwargs: Mapping[str, Any], inputs: Mapping[str, Any]) -> torch.Tensor:
        """The loss, once each parameter has its gradient."""
        loss = self.loss(self.module(*args, **kwargs), inputs)
        loss.backward()
        return loss

    def optimizer(self, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        t = self.train
        spared = re.compile(t["no_decay"]).search if t["no_decay"] else lambda name: None
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for n, p in named if not spared(n)], "weight_decay": weight_decay},
            {"params": [p for n, p in named if spared(n)], "weight_decay": 0.0},
        ]
        groups = [g for g in groups if g["params"]]
        if t["optimizer"] == "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=t["momentum"], nesterov=t["nesterov"])
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[t["optimizer"]]
        return kind(groups, lr=lr, betas=(t["beta1"], t["beta2"]), eps=t["eps"])

    def target_of(self, inputs: Mapping[str, Any]) -> str:
        """The name of the targets among the inputs: a model may have an input `target` of its own."""
        own = {name for name, _ in input_leaves(self.reference.program)}
        return next(name for name in (TARGET, *inputs) if name.startswith(TARGET) and name not in own)

    def loss(self, output: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The loss that is named, of the model's first float result; else the one the model returns: what it calls `loss`, or its first scalar."""
        t = self.train
        leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if not t["loss"]:
            named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            return named if named is not None else next(x for x in leaves if x.ndim == 0)
        x, target = leaves[0], torch.as_tensor(inputs[self.target_of(inputs)])
        if t["loss"] == "cross-entropy":
            x = x.movedim(t["class_dim"], -1).flatten(0, -2)
            return F.cross_entropy(x, target.reshape(-1), ignore_index=t["ignore"], label_smoothing=t["label_smoothing"])
        function = {"mse": F.mse_loss, "bce": F.binary_cross_entropy_with_logits}[t["loss"]]
        return function(x, target.double().reshape(x.shape))
