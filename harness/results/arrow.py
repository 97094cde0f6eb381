"""Arrow arrays of Python values, made of their buffers: `pyarrow.array` would import pandas, which takes a while.

The layouts are those of the Arrow columnar format, "Fixed-size Primitive" and "Variable-size Binary".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


def array(values: Sequence[Any] | np.ndarray, kind: str) -> pa.Array:
    """Return the values, shape [n], as `string` or a kind of number; None is a gap."""
    import numpy as np
    import pyarrow as pa

    validity, gaps = None, [] if isinstance(values, np.ndarray) else [value is None for value in values]
    if any(gaps):
        validity = pa.py_buffer(np.packbits(np.logical_not(gaps), bitorder="little"))
    if kind == "string":
        texts = [b"" if value is None else value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)), validity)
    numbers = np.asarray([0 if value is None else value for value in values] if any(gaps) else values, dtype=kind)
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(numbers), [validity, pa.py_buffer(numbers)])
