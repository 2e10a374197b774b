"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write what shall be at `path`: it gets there when the block ends, and an interrupted write never does."""
    partial = path.with_suffix(".partial")
    yield partial
    os.replace(partial, path)
