"""The ggml tensor types: id, name, and how many bytes a block of elements takes.

Every type that files hold is listed, so that one which this version cannot compute is still
measured, checked and named. Layouts: ggml/src/ggml-common.h of the ggml project.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """One tensor type: block_bytes bytes hold block_size consecutive elements of a row."""

    id: int
    name: str
    block_size: int
    block_bytes: int


F32, F16, BF16 = 0, 1, 30
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 2, 3, 6, 7, 8
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = 10, 11, 12, 13, 14
IQ4_NL, IQ4_XS = 20, 23

GGML_TYPES: dict[int, GgmlType] = {
    entry[0]: GgmlType(*entry)
    for entry in (
        (F32, "F32", 1, 4),
        (F16, "F16", 1, 2),
        (Q4_0, "Q4_0", 32, 18),
        (Q4_1, "Q4_1", 32, 20),
        (Q5_0, "Q5_0", 32, 22),
        (Q5_1, "Q5_1", 32, 24),
        (Q8_0, "Q8_0", 32, 34),
        (Q2_K, "Q2_K", 256, 84),
        (Q3_K, "Q3_K", 256, 110),
        (Q4_K, "Q4_K", 256, 144),
        (Q5_K, "Q5_K", 256, 176),
        (Q6_K, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (IQ4_NL, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (IQ4_XS, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (BF16, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}


def type_name(ggml_type: int) -> str:
    """Return the format's name of a type id, or the id itself where it is unknown."""
    known = GGML_TYPES.get(ggml_type)
    return known.name if known else f"type {ggml_type}"
