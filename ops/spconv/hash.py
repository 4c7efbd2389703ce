"""`spconv.pytorch.hash`: a table of integer keys and their values."""

from __future__ import annotations

import torch
from torch import Tensor


class HashTable:
    """Keys [N] int32 or int64 and a value for each; the first value of a key stays. `items` come in
    the order of the keys. `max_size` is accepted: a table grows here."""

    def __init__(
        self,
        device: torch.device | str,
        key_dtype: torch.dtype,
        value_dtype: torch.dtype,
        max_size: int = -1,
    ):
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self._keys = torch.empty(0, dtype=key_dtype, device=device)  # sorted
        self._values = torch.empty(0, dtype=value_dtype, device=device)

    def insert(self, keys: Tensor, values: Tensor | None = None) -> None:
        """Keys [N] that are not there yet; their values are 0 unless given."""
        values = torch.zeros_like(keys) if values is None else values
        every = torch.cat((self._keys, keys.to(self.key_dtype)))
        every, order = every.sort(stable=True)  # of equal keys the first comes first
        is_first = torch.ones_like(every, dtype=torch.bool)
        is_first[1:] = every[1:] != every[:-1]
        self._keys = every[is_first]
        self._values = torch.cat((self._values, values.to(self.value_dtype)))[order[is_first]]

    def query(self, keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The values [N] of keys [N], and 1 where one is missing [N] uint8; the value of a missing
        key is that of `values`, or 0."""
        place, missing = self._find(keys)
        found = self._keys.new_zeros(len(keys), dtype=self.value_dtype)
        found = found if values is None else values
        found[~missing] = self._values[place[~missing]]
        return found, missing.to(torch.uint8)

    def insert_exist_keys(self, keys: Tensor, values: Tensor) -> Tensor:
        """Other values [N] for keys [N] that are there; 1 where one is not [N] uint8."""
        place, missing = self._find(keys)
        self._values[place[~missing]] = values[~missing].to(self.value_dtype)
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
        keys = keys.to(self.key_dtype)
        if len(self._keys) == 0:
            return torch.zeros_like(keys, dtype=torch.int64), torch.ones_like(
                keys, dtype=torch.bool
            )
        place = torch.searchsorted(self._keys, keys.contiguous()).clamp(max=len(self._keys) - 1)
        return place, self._keys[place] != keys

    def _count(self) -> Tensor:
        return torch.tensor([len(self._keys)], device=self._keys.device)
