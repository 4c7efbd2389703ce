"""`spconv.pytorch.hash`: a table of integer keys and their values."""

from __future__ import annotations

import torch
from torch import Tensor

KEYS = torch.int32, torch.int64


class HashTable:
    """Keys [N] int32 or int64 and a value for each; the first value of a key stays. `items` come in
    the order of the keys. `max_size` is accepted: a table grows here.

    Keys and values come as tensors [N] on the table's device, of its types or of those that
    `torch.promote_types` turns into them; ValueError for others.
    """

    def __init__(
        self,
        device: torch.device | str,
        key_dtype: torch.dtype,
        value_dtype: torch.dtype,
        max_size: int = -1,
    ):
        if key_dtype not in KEYS:
            raise ValueError(f"key_dtype: expected torch.int32 or torch.int64, got {key_dtype}")
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self._keys = torch.empty(0, dtype=key_dtype, device=device)  # sorted
        self._values = torch.empty(0, dtype=value_dtype, device=device)

    def insert(self, keys: Tensor, values: Tensor | None = None) -> None:
        """Keys [N] that are not there yet; their values are 0 unless given."""
        keys = self._checked_keys(keys)
        if values is None:
            values = torch.zeros_like(keys, dtype=self.value_dtype)
        every = torch.cat((self._keys, keys))
        every, order = every.sort(stable=True)  # of equal keys the first comes first
        is_first = torch.ones_like(every, dtype=torch.bool)
        is_first[1:] = every[1:] != every[:-1]
        values = torch.cat((self._values, self._checked_values(values, keys)))
        self._keys, self._values = every[is_first], values[order[is_first]]

    def query(self, keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The values [N] of keys [N], and where one is missing [N] bool; a missing key
        has its value in `values`, or 0."""
        place, missing = self._find(keys)
        found = self._values.new_zeros(len(keys))
        if values is not None:  # the caller's: it is written to
            self._checked_values(values, keys)
            if values.dtype != self.value_dtype:
                raise ValueError(f"values: {values.dtype}, expected {self.value_dtype}")
            found = values
        found[~missing] = self._values[place[~missing]]
        return found, missing

    def insert_exist_keys(self, keys: Tensor, values: Tensor) -> Tensor:
        """Other values [N] for keys [N] that are there, the last one of a key; 1 where one is not
        [N] uint8."""
        place, missing = self._find(keys)
        values = self._checked_values(values, keys)[~missing]
        place, order = place[~missing].sort(stable=True)
        is_last = torch.ones_like(place, dtype=torch.bool)
        is_last[:-1] = place[1:] != place[:-1]
        self._values[place[is_last]] = values[order[is_last]]
        return missing.to(torch.uint8)

    def assign_arange_(self) -> Tensor:
        """The value of each key becomes its number; their count [1]."""
        self._values = torch.arange(
            len(self._keys), dtype=self.value_dtype, device=self._keys.device
        )
        return self._count()

    def items(self, max_size: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and their count [1]; the first `max_size` of them."""
        end = len(self._keys) if max_size < 0 else max_size
        return self._keys[:end].clone(), self._values[:end].clone(), self._count()

    def _find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The place [N] of each key, and whether it is missing [N]."""
        keys = self._checked_keys(keys)
        if len(self._keys) == 0:
            return torch.zeros_like(keys, dtype=torch.int64), torch.ones_like(
                keys, dtype=torch.bool
            )
        place = torch.searchsorted(self._keys, keys.contiguous()).clamp(max=len(self._keys) - 1)
        return place, self._keys[place] != keys

    def _count(self) -> Tensor:
        return torch.tensor([len(self._keys)], device=self._keys.device)

    def _checked_keys(self, keys: Tensor) -> Tensor:
        if keys.ndim != 1:
            raise ValueError(f"keys: expected [N], got {list(keys.shape)}")
        return self._converted("keys", keys, self.key_dtype)

    def _checked_values(self, values: Tensor, keys: Tensor) -> Tensor:
        if values.shape != keys.shape:
            raise ValueError(f"values: {list(values.shape)} for {len(keys)} keys, expected [N]")
        return self._converted("values", values, self.value_dtype)

    def _converted(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if tensor.device != self._keys.device:
            raise ValueError(f"{name}: on {tensor.device}, the table is on {self._keys.device}")
        if torch.promote_types(tensor.dtype, dtype) != dtype:  # numbers would be cut off
            raise ValueError(f"{name}: {tensor.dtype} does not fit into the table's {dtype}")
        return tensor.to(dtype)
