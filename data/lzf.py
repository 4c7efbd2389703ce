"""Decompression of LZF (Marc Lehmann's LibLZF), as binary_compressed PCD files have it.

A control byte below 32 says that so many bytes and one more follow as they are. Any other one says
how many bytes are repeated, and how far back they stand: LLLddddd dddddddd, with a byte more for
the length when LLL is 7.
"""


def decompress(packed: bytes, size: int) -> bytes:
    """Raises ValueError unless exactly `size` bytes come out."""
    out = bytearray()
    at, end = 0, len(packed)
    try:
        while at < end:
            control = packed[at]
            at += 1
            if control < 32:
                out += packed[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += packed[at]
                at += 1
            start = len(out) - ((control & 31) << 8) - packed[at] - 1
            at += 1
            length += 2
            if start < 0 or len(out) + length > size:
                break
            piece = out[start : start + length]
            if len(piece) < length:  # it repeats what it has just written
                piece = (piece * (length // len(piece) + 1))[:length]
            out += piece
    except IndexError:  # ends within an instruction
        pass
    if at != end or len(out) != size:
        raise ValueError(f"its compressed part gives {len(out)} bytes, it should give {size}")
    return bytes(out)
