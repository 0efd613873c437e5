"""The backbone's layers in torch, dequantised: for what the engine does not show, its inside.

Legend: T tokens, D hidden size. Weights are f32 of the file's values and activations are not
rounded, so states are close to the engine's and not its bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from drafthead.backbone.handle import Backbone
from drafthead.training.library import dequantised, library_model


class TorchHost:
    """The first layers of a backbone of any family, layer by layer.

    dtype: of the matrix products; bf16 halves the time where the processor has it.

    Raises:
        TrainingError: transformers is not installed, or has no such model.
    """

    def __init__(
        self, backbone: Backbone, layers: int | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.spec = backbone.spec
        self.layers = layers or self.spec.n_layers
        self._gguf, self._native = backbone.gguf, backbone.native
        self._model: Any = library_model(backbone, self.layers)
        self._autocast = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
        for module in self._model.modules():
            if isinstance(module, nn.Linear):
                module.to(dtype)  # so that no run casts them
        self._entering: dict[int, Tensor] = {}
        self._attended: dict[int, Tensor] = {}
        for index, layer in enumerate([*self._model.layers, self._model.norm]):
            layer.register_forward_pre_hook(self._keep_input(index))
        for index, layer in enumerate(self._model.layers):
            layer.self_attn.register_forward_hook(self._keep_attended(index))

    def values(self, name: str) -> Tensor:
        """A tensor of the file in f32; query and key rows in the split-half rotary layout."""
        return dequantised(self._gguf, self.spec, name)

    @torch.no_grad()
    def run(self, tokens: list[int]) -> Tensor:
        """The states of a sequence after the final norm, (T, D); the inside is kept for asking."""
        ids = torch.tensor(tokens, dtype=torch.int32).numpy()
        embeddings = torch.from_numpy(self._native.embed(ids).copy())
        with self._autocast:
            states: Tensor = self._model(inputs_embeds=embeddings[None], use_cache=False)[0][0]
        return states.float()

    def entering(self, layer: int) -> Tensor:
        """What entered a layer at the last run, (T, D); the last number stands for the norm."""
        return self._entering[layer]

    def attended(self, layer: int) -> Tensor:
        """What a layer's output projection gave at the last run, (T, D)."""
        return self._attended[layer]

    def _keep_input(self, index: int) -> Any:
        def keep(_module: Any, inputs: tuple[Tensor, ...]) -> None:
            self._entering[index] = inputs[0][0]

        return keep

    def _keep_attended(self, index: int) -> Any:
        def keep(_module: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
            self._attended[index] = outputs[0][0].float()

        return keep
