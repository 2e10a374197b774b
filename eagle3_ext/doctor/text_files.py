"""Text files as shells leave them: UTF-8, with a byte order mark or without, or UTF-16 with one (PowerShell's `>`),
each of them plain or gzipped."""

from __future__ import annotations

import codecs
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

LONGEST_LINE = 1 << 16  # bytes; what is longer is no log line of an engine, and must not fill the memory
GZIP_MAGIC = b"\x1f\x8b"
PROGRESS_FROM = 32 << 20  # bytes; below that a progress bar is over before it is seen
PROGRESS_EVERY = 1 << 14  # lines


def open_text(path: Path) -> TextIO:
    """The file for reading, without its byte order mark; bytes that are no text become U+FFFD."""
    encoding = "utf-16" if _is_utf16(path) else "utf-8-sig"
    return io.TextIOWrapper(_open_bytes(path), encoding, "replace", newline="\n")


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """The lines as UTF-8, in constant memory, with a progress bar on the terminal for large files.

    Not decoded where the file is UTF-8 already: nearly all lines of a log say nothing, which bytes tell as well. A line
    longer than LONGEST_LINE comes out empty: one line all the same, so that line numbers stay right.
    """
    from rich.console import Console
    from rich.progress import Progress

    size = path.stat().st_size
    with (
        _open_bytes(path) as file,
        Progress(console=Console(stderr=True), transient=True, disable=size < PROGRESS_FROM) as progress,
    ):
        task = progress.add_task(path.name, total=size)
        text = io.TextIOWrapper(file, "utf-16", "replace", newline="\n") if _is_utf16(path) else None
        number = 0
        while line := _next_line(file, text):
            if len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = _next_line(file, text)
                line = b""
            number += 1
            if number % PROGRESS_EVERY == 0:
                progress.update(task, completed=getattr(file, "fileobj", file).tell())
            yield line


def _next_line(file: BinaryIO, text: TextIO | None) -> bytes:
    """At most LONGEST_LINE bytes or characters of the next line, b"" at the end."""
    return file.readline(LONGEST_LINE) if text is None else text.readline(LONGEST_LINE).encode("utf-8", "replace")


def _open_bytes(path: Path) -> BinaryIO:
    """What a file holds, unpacked while it is read where it is gzipped."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return gzip.open(path) if packed else path.open("rb")


def _is_utf16(path: Path) -> bool:
    with _open_bytes(path) as file:
        return file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
