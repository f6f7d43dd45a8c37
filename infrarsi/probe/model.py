"""Parameters under their canonical names, whatever wraps the model."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
INNER_PREFIXES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def unwrap(module: nn.Module) -> nn.Module:
    """Return the model inside DDP, FSDP, `torch.compile` and checkpoint wrappers."""
    while True:
        children = module._modules
        if type(module).__name__ in WRAPPERS and children.get("module") is not None:
            inner = children["module"]
        else:
            inner = next((children[p[:-1]] for p in INNER_PREFIXES if children.get(p[:-1]) is not None), None)
        if inner is None:
            return module
        module = inner


def named(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters of the unwrapped model, sorted by canonical name; shared ones appear once."""
    pairs: list[tuple[str, Tensor]] = []
    for name, parameter in unwrap(module).named_parameters():
        for prefix in INNER_PREFIXES:
            name = name.replace(prefix, "")
        pairs.append((name, parameter))
    return sorted(pairs, key=lambda pair: pair[0])


def describe(pairs: list[tuple[str, Tensor]]) -> list[list[Any]]:
    """Return [name, shape, dtype, trainable] of each parameter, as the `model` message and RankEnd have it."""
    return [
        [name, [int(n) for n in p.shape], str(p.dtype).removeprefix("torch."), bool(p.requires_grad)]
        for name, p in pairs
    ]


def is_sharded(tensor: Tensor) -> bool:
    """Say whether this rank holds only a part of the tensor (DTensor with a shard placement, FSDP flat parameter)."""
    placements = getattr(tensor, "placements", None)
    if placements is not None:
        return any(not item.is_replicate() for item in placements)
    return type(tensor).__name__ == "FlatParameter" or hasattr(tensor, "_local_shape")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's plain tensor: the local part of a DTensor, the tensor itself otherwise."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return tensor
    part = getattr(tensor, "_local_tensor", None)
    return part if isinstance(part, Tensor) else tensor


def parameter_hash(pairs: list[tuple[str, Tensor]]) -> str:
    """Return blake2b over names and bytes of the whole weights, in hex, whatever shards them.

    A collective where parameters are DTensors: each is gathered, one at a time. "" where they cannot be (the flat
    parameters of FSDP1). Ranks that hold the same weights give the same text.
    """
    if any(is_sharded(p) and not hasattr(p, "full_tensor") for _, p in pairs):
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in pairs:
        gather = getattr(parameter, "full_tensor", None)
        value = (parameter if gather is None else gather()).detach().cpu().contiguous()
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\n".encode())
        size = value.numel() * value.element_size()
        if size:
            # Zero-copy without numpy, which the training's environment may lack (and which has no bfloat16).
            digest.update((ctypes.c_char * size).from_address(value.data_ptr()))
    return digest.hexdigest()


def trainable_elements(module: nn.Module) -> int:
    """Return the number of trainable elements of a module, 0 for a loss or an activation."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad and not torch.nn.parameter.is_lazy(p))
