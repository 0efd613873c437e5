"""A pretended accelerator: tensors in this machine's memory that only meet each other.

Inside `pretended()`, tensors made on or moved to DEVICE say so, and what torch refuses of an
accelerator is refused of them: an operation with a tensor of the processor, and NumPy. Their
arithmetic is the processor's, so what is computed there must be the same bits as here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE, CPU = torch.device("cuda", 0), torch.device("cpu")
TO_NUMPY = (Tensor.numpy, Tensor.__array__)


class _Held:
    """The memory that is pretended to be the accelerator's; kept, so that none is used again."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def put(self, tensor: Tensor, there: bool) -> None:
        storage = tensor.untyped_storage()
        if there:
            self._storages[storage._cdata] = storage
        else:
            self._storages.pop(storage._cdata, None)


def _asked(arguments: Any) -> torch.device | None:
    """The device that a call names, if any."""
    parts = tree_leaves(arguments)
    named = [part for part in parts if isinstance(part, torch.device)]
    named += [CPU for part in parts if isinstance(part, str) and part == CPU.type]
    return named[0] if named else None


class _Places(TorchFunctionMode):
    """Answers which device a tensor is on, and makes and moves tensors."""

    def __init__(self, held: _Held) -> None:
        self._held = held

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:  # a new wrapper at each look
            return DEVICE if args[0] in self._held else CPU
        if func in TO_NUMPY and args[0] in self._held:
            raise TypeError("can't convert a tensor of an accelerator to numpy; use .cpu() first")
        if func is one_hot and args[0] in self._held:  # makes its table where nothing is pretended
            return self._moved(one_hot(self._moved(args[0], False), *args[1:]), True)
        asked = CPU if func is Tensor.cpu else _asked((args, kwargs))
        if asked is None or func is torch._C._nn._parse_to:  # that of a module, tensor by tensor
            return func(*args, **kwargs)
        assert asked in (CPU, DEVICE)
        here = tree_map(
            lambda part: CPU if isinstance(part, torch.device) else part, (args, kwargs)
        )
        made = func(*here[0], **here[1])
        if not isinstance(made, Tensor) or (made in self._held) == (asked == DEVICE):
            return made
        return self._moved(made, asked == DEVICE)

    def _moved(self, tensor: Tensor, there: bool) -> Tensor:
        made = tensor.clone()
        self._held.put(made, there)
        return made


class _Apart(TorchDispatchMode):
    """Refuses to mix devices, and knows where results are; a number may come from anywhere."""

    def __init__(self, held: _Held) -> None:
        super().__init__()
        self._held = held

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        there = [tensor for tensor in tensors if tensor in self._held]
        here = [tensor for tensor in tensors if tensor not in self._held and tensor.dim()]
        moving = func is torch.ops.aten.copy_.default
        if there and here and not moving:
            raise RuntimeError(f"{func}: expected all tensors on one device")
        out = func(*args, **(kwargs or {}))
        if there and not moving:
            for made in tree_leaves(out):
                if isinstance(made, Tensor):
                    self._held.put(made, True)
        return out


@contextmanager
def pretended(monkeypatch: Any) -> Iterator[torch.device]:
    """Yields the device; inside, torch works as if it were there."""
    autocast, held = torch.autocast, _Held()

    def there(device_type: str, *how: Any, **more: Any) -> Any:
        assert device_type in (DEVICE.type, CPU.type)
        return autocast("cpu", *how, **more)

    monkeypatch.setattr(torch, "autocast", there)
    with _Places(held), _Apart(held):
        yield DEVICE
    monkeypatch.setattr(torch, "autocast", autocast)
