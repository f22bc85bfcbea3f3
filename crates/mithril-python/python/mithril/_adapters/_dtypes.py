"""The one table of number types: what containers, numpy with ml_dtypes, torch and MLX call each.

A type that has no name in a column is one that the framework lacks. `F4` and `F6_*` are packed: several elements share
bytes. Types of numpy and ml_dtypes take whole bytes, so they are none of these; torch has one for two elements of `F4`.
"""

from __future__ import annotations

from typing import NamedTuple


class Names(NamedTuple):
    """What a number type is called."""

    ours: str
    """In containers, and in safetensors files."""
    numpy: str | None
    """In numpy, or in ml_dtypes; JAX has the same."""
    torch: str | None
    mlx: str | None


TABLE = (
    Names("BOOL", "bool", "bool", "bool_"),
    Names("U8", "uint8", "uint8", "uint8"),
    Names("I8", "int8", "int8", "int8"),
    Names("U16", "uint16", "uint16", "uint16"),
    Names("I16", "int16", "int16", "int16"),
    Names("U32", "uint32", "uint32", "uint32"),
    Names("I32", "int32", "int32", "int32"),
    Names("U64", "uint64", "uint64", "uint64"),
    Names("I64", "int64", "int64", "int64"),
    Names("F16", "float16", "float16", "float16"),
    Names("BF16", "bfloat16", "bfloat16", "bfloat16"),
    Names("F32", "float32", "float32", "float32"),
    Names("F64", "float64", "float64", "float64"),
    Names("C64", "complex64", "complex64", "complex64"),
    Names("F8_E4M3", "float8_e4m3fn", "float8_e4m3fn", None),
    Names("F8_E5M2", "float8_e5m2", "float8_e5m2", None),
    Names("F8_E8M0", "float8_e8m0fnu", "float8_e8m0fnu", None),
    Names("F8_E4M3FNUZ", "float8_e4m3fnuz", "float8_e4m3fnuz", None),
    Names("F8_E5M2FNUZ", "float8_e5m2fnuz", "float8_e5m2fnuz", None),
    Names("F4", None, "float4_e2m1fn_x2", None),
    Names("F6_E2M3", None, None, None),
    Names("F6_E3M2", None, None, None),
)

PARTS = {"complex128": "F64", "complex32": "F16", "bcomplex32": "BF16"}
"""Complex numbers that containers have no name for, and the type of their two parts."""

_PART_SIZES = {"F64": 8, "F16": 2, "BF16": 2}


def stored_as(name: str, size: int) -> tuple[str, tuple[int, ...]]:
    """What a container takes `size` bytes of a type for that it has no name for: type and shape."""
    part = PARTS.get(name)
    return ("U8", (size,)) if part is None else (part, (size // _PART_SIZES[part],))
