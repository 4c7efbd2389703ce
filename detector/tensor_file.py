"""Tensors and texts in one safetensors file that knows its own checksum."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from millisecond.data.files import replacing, require_file

CHECKSUM = "sha256"  # name of the text
_BLANK = "0" * 64  # stands where the digest goes while the digest is taken


class TensorFile(NamedTuple):
    """What is in a file."""

    tensors: dict[str, Tensor]
    texts: dict[str, str]
    checked: bool  # whether it had a checksum, which was right


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Writes a file that is whole or not there, after a loss of power too.

    Its texts hold the SHA-256 of the whole file, taken with 64 zeros in the digest's place.
    """
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    blob = safetensors.torch.save(host, {**texts, CHECKSUM: _BLANK})
    digest = hashlib.sha256(blob).hexdigest()
    blob = blob.replace(_BLANK.encode(), digest.encode(), 1)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the new name itself may be lost with the power
    finally:
        os.close(folder)


def read(path: Path) -> TensorFile:
    """Reads a file; nothing is unpickled.

    Raises ValueError where it is not a safetensors file, or not as it was written.
    """
    require_file(Path(path))
    blob = Path(path).read_bytes()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            texts = file.metadata() or {}
        tensors = safetensors.torch.load(blob)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: damaged or not a safetensors file ({error})") from None
    except (KeyError, TypeError) as error:  # a type of numbers that torch does not have
        raise ValueError(f"{path}: its tensors cannot be read ({error})") from None
    digest = texts.pop(CHECKSUM, None)
    if digest is not None:
        blank = blob.replace(digest.encode(), _BLANK.encode(), 1)
        if hashlib.sha256(blank).hexdigest() != digest:
            raise ValueError(f"{path}: is damaged: its checksum differs")
    return TensorFile(tensors, texts, digest is not None)
