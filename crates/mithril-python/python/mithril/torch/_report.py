"""Which layers of a model are coded, and why the others are not."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

from mithril.torch._modules import _Coded


@dataclass(frozen=True)
class CodingReport:
    """Layers of a model by name: those that are coded, and those that are not, each with the reason."""

    coded: tuple[str, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """One sentence, with a count for each reason."""
        text = f"{len(self.coded)} of {len(self.coded) + len(self.kept)} layers with weights are coded"
        reasons = Counter(self.kept.values()).most_common()
        return text + "".join(f"; {count} left as they are: {reason}" for reason, count in reasons)


def coding_report(model: nn.Module) -> CodingReport:
    """What of a model is coded, and what is not and why.

    >>> from mithril.torch import compress_module
    >>> model = nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.Linear(8, 8, dtype=torch.bfloat16))
    >>> print(coding_report(compress_module(model)))
    2 of 2 layers with weights are coded
    """
    coded, kept = [], {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _Coded):
            coded.append(name)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            kept[name] = (
                reason_of_class(module) or reason_of_weight(module) or "it was not asked for, or has no matrix in the source"
            )
    return CodingReport(tuple(coded), kept)


def reason_of_class(module: nn.Module) -> str | None:
    """Why a layer is never replaced, whatever its weights are."""
    kind = type(module)
    if kind not in (nn.Linear, nn.Embedding):
        return f"a {kind.__qualname__} is a subclass, which may do something else with its weights"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "an Embedding with `max_norm` changes its own weights"
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.numel() == 0:
        return "there are no weights"
    return None


def reason_of_weight(module: nn.Module) -> str | None:
    """Why the weights of a layer cannot be coded, as far as their type tells."""
    dtype = module.weight.dtype
    if dtype == torch.bfloat16:
        return None
    return (
        f"weights of {dtype} are not coded, unless all of them are bf16 values (`model.to(torch.bfloat16)` rounds them; "
        "files and checkpoints of such models are compressed without loss)"
    )


def warn(report: CodingReport, unexpected: set[str], stacklevel: int) -> None:
    """Warns if nothing was coded, or something was not that the caller could expect to be."""
    if unexpected or not report.coded:
        what = str(report) if report.coded or report.kept else "the model has no Linear and no Embedding: nothing is coded"
        warnings.warn(what, UserWarning, stacklevel=stacklevel + 1)
