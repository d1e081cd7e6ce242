"""Byte streams of input files: decompressed by their first bytes, whatever their names say."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from typing import IO, Any, NamedTuple, cast

from preprocessing.readers.entries import InputError

HEAD = 2**16  # bytes that can be looked at before reading
LAYERS = 3  # of compression; servers compress what is compressed already
ZSTD_CHUNK = 2**11  # bytes decompressed at once: zstd makes up to 2**15 as many of zeros
REFUSED = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"Rar!": "a RAR archive; unpack it",
    b"\xff\xfe": "UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
}


class ZstandardFile(io.RawIOBase):
    """The content of a .zst file of one or more frames; EOFError where it is truncated.

    zstandard's own stream_reader ends a truncated file without an error.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard  # an extra
        except ImportError:
            raise InputError("compressed by zstd; `pip install zstandard` to read it") from None
        self._error = zstandard.ZstdError
        self._raw, self._new = raw, zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._left, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with at least one byte; 0 at the end."""
        while not self._ready:
            data = self._left or self._raw.read(ZSTD_CHUNK)
            if not data and self._frame is not None:
                raise EOFError("the last frame is not complete")
            if not data:
                return 0
            self._frame = self._frame or self._new()
            try:
                self._ready, self._left = memoryview(self._frame.decompress(data)), b""
            except self._error as error:
                raise lzma.LZMAError(str(error)) from None
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _gunzipped(raw: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=raw, mode="rb")  # raw.mode may be a number


GZIP = b"\x1f\x8b\x08"
CODECS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    GZIP: _gunzipped,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": ZstandardFile,
}


class Content(NamedTuple):
    """A file's decompressed content, and how many of the bytes of the file itself are read."""

    stream: Any  # an io.BufferedReader
    position: Callable[[], int]
    is_compressed: bool = False

    @property
    def head(self) -> bytes:
        """The first HEAD bytes, without reading them."""
        return self.stream.peek(HEAD)


def open_source(raw: IO[bytes]) -> Content:
    """The content of an open file, decompressed as often as it is compressed.

    Raises InputError on formats that have to be converted first.
    """
    stream = io.BufferedReader(cast(Any, raw), HEAD)
    source = Content(stream, stream.tell)
    for _ in range(LAYERS):
        codec = _codec(source.head)
        if codec is None:
            break
        source = Content(
            io.BufferedReader(codec(source.stream), HEAD), raw.tell, is_compressed=True
        )
    for magic, what in REFUSED.items():
        if source.head.startswith(magic):
            raise InputError(f"is {what}")
    return source


def is_compressed(head: bytes) -> bool:
    """Whether a file that begins so is compressed, and so can only be read from its beginning."""
    return _codec(head) is not None


def is_zip(head: bytes) -> bool:
    """Whether a file that begins so is a zip archive."""
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def is_parquet(head: bytes) -> bool:
    """Whether a file that begins so is a Parquet file."""
    return head.startswith(b"PAR1")


def is_tar(head: bytes) -> bool:
    """Whether a file that begins so is a tar archive: the checksum of its first header fits."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _codec(head: bytes) -> Callable[[IO[bytes]], Any] | None:
    for magic, codec in CODECS.items():
        if head.startswith(magic) and (magic != b"BZh" or head[4:10] in BZIP2_BLOCKS):
            return codec
    return None


BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # of a file with and without content
