"""How large a standalone drafter is made: as many parameters as a head's body, or as many bytes.

A head borrows embeddings and output rows from the backbone; a model of its own must bring its own,
for the backbone's whole vocabulary. So there are two fair sizes: the head's parameters, with the
embedding table on top ("body"), and the head's bytes, embedding table included ("bytes").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from drafthead.errors import TrainingError
from drafthead.gguf.types import GGML_TYPES, Q8_0
from drafthead.heads.config import HeadConfig
from drafthead.heads.package import DTYPE_BYTES, expected_tensors
from drafthead.training.recipe import StandaloneRecipe

BLOCK = GGML_TYPES[Q8_0].block_size
WEIGHT_BYTES = GGML_TYPES[Q8_0].block_bytes / BLOCK
WIDE_HEAD, NARROW_HEAD = 64, 32
FF_RATIO = 8 / 3  # of the feed-forward size to the width, as in Llama
USUAL_LAYERS, MOST_LAYERS = 6, 8
LEAST_BODY = 0.2  # of all bytes: a wider table with less behind it learns no language


@dataclass(frozen=True)
class DraftShape:
    """Sizes of a llama with tied embeddings."""

    vocab_size: int
    width: int
    layers: int
    d_ff: int

    @property
    def head_dim(self) -> int:
        """Of an attention head."""
        wide = self.width % WIDE_HEAD == 0 and self.width >= 2 * WIDE_HEAD
        return WIDE_HEAD if wide else NARROW_HEAD

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.width // self.head_dim

    @property
    def n_kv_heads(self) -> int:
        """Key and value heads: at most half as many, which halves the cache."""
        half = max(1, self.n_heads // 2)
        return next(count for count in range(half, 0, -1) if self.n_heads % count == 0)

    @property
    def body_parameters(self) -> int:
        """Everything but the embedding table."""
        attention = 2 * self.width * (self.n_heads + self.n_kv_heads) * self.head_dim
        layer = attention + 3 * self.width * self.d_ff + 2 * self.width
        return self.layers * layer + self.width

    @property
    def embedding_parameters(self) -> int:
        """The embedding table, which gives the output rows too."""
        return self.vocab_size * self.width

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in a file: matrices in Q8_0, norms in F32."""
        norms = (2 * self.layers + 1) * self.width
        matrices = self.body_parameters + self.embedding_parameters - norms
        return round(matrices * WEIGHT_BYTES) + 4 * norms


def head_parameters(config: HeadConfig) -> int:
    """Parameters of a head's body: all that is trained."""
    matrices = sum(rows * columns for rows, columns in config.matrices().values())
    return matrices + sum(config.vectors().values())


def head_bytes(config: HeadConfig) -> int:
    """Bytes of a head package's tensors."""
    return sum(
        DTYPE_BYTES[dtype] * math.prod(shape) for dtype, shape in expected_tensors(config).values()
    )


def draft_shape(recipe: StandaloneRecipe, head: HeadConfig) -> DraftShape:
    """The shape that is as large as a head in what `recipe.size` names, and never larger.

    Raises:
        TrainingError: no model of this vocabulary is so small, or width or layers do not fit.
    """
    if recipe.width % BLOCK:
        raise TrainingError(
            f"[standalone] width must be a multiple of {BLOCK}, found {recipe.width}."
        )
    for width in [recipe.width] if recipe.width else _widths(recipe.size, head):
        empty = DraftShape(head.vocab_size, width, layers=1, d_ff=BLOCK)
        fitting = [
            shape
            for count in ([recipe.layers] if recipe.layers else range(1, MOST_LAYERS + 1))
            if (shape := _filled(replace(empty, layers=count), recipe.size, head)) is not None
        ]
        if fitting:
            return min(fitting, key=lambda shape: abs(math.log(shape.d_ff / width / FF_RATIO)))
    raise TrainingError(
        f"[standalone]: no model with an embedding table of {head.vocab_size} tokens, width "
        f"{recipe.width or NARROW_HEAD} and {recipe.layers or 1} layers is as small as the head in "
        f'size = "{recipe.size}"; set another width, layers or size.'
    )


def _widths(size: str, head: HeadConfig) -> Iterator[int]:
    """Widths to try, the best first."""
    if size == "body":
        per_layer = 3 + 3 * FF_RATIO  # in squares of the width
        usual = math.sqrt(head_parameters(head) / (USUAL_LAYERS * per_layer))
        step = WIDE_HEAD if usual >= 2 * WIDE_HEAD else NARROW_HEAD
        yield max(step, step * round(usual / step))
        return
    table = (1.0 - LEAST_BODY) * head_bytes(head) / (WEIGHT_BYTES * head.vocab_size)
    yield from range(BLOCK * int(table / BLOCK), 0, -BLOCK)


def _filled(shape: DraftShape, size: str, head: HeadConfig) -> DraftShape | None:
    """The shape with the largest feed-forward size that fits; None where none does."""

    def room(d_ff: int) -> int:
        tried = replace(shape, d_ff=d_ff)
        if size == "body":
            return head_parameters(head) - tried.body_parameters
        return head_bytes(head) - tried.nbytes

    per_block = room(BLOCK) - room(2 * BLOCK)
    blocks = 1 + room(BLOCK) // per_block
    return replace(shape, d_ff=BLOCK * blocks) if blocks > 0 else None
