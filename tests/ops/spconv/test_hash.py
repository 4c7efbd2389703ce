"""The table of keys and values, against a dict."""

import pytest
import torch

from ops.spconv.hash import HashTable


@pytest.mark.parametrize("key_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("value_dtype", [torch.int32, torch.int64, torch.float32])
def test_as_a_dict(key_dtype, value_dtype):
    generator = torch.Generator().manual_seed(0)
    table, expected = HashTable(torch.device("cpu"), key_dtype, value_dtype, 400), {}
    for _ in range(3):
        keys = torch.randint(-20, 60, (50,), generator=generator, dtype=key_dtype)
        values = torch.randint(1, 99, (50,), generator=generator).to(value_dtype)
        table.insert(keys, values)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            expected.setdefault(key, value)  # as spconv's on a CPU: the first stays
    keys, values, count = table.items()
    assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == expected
    assert (keys.dtype, values.dtype, int(count)) == (key_dtype, value_dtype, len(expected))
    asked = torch.arange(-30, 70, dtype=key_dtype)
    found, missing = table.query(asked)
    assert missing.dtype == torch.uint8  # as in spconv
    missing = missing.bool()
    assert missing.tolist() == [key not in expected for key in asked.tolist()]
    assert found.tolist() == [expected.get(key, 0) for key in asked.tolist()]
    assert table.query(asked, torch.full_like(found, 7))[0][missing].eq(7).all()


def test_values_change():
    table = HashTable("cpu", torch.int64, torch.int64)
    asked = torch.tensor([5, 9, 7])
    assert table.query(asked)[1].all()
    table.insert(torch.tensor([9, 5, 9]))
    assert table.insert_exist_keys(asked, torch.tensor([50, 90, 70])).tolist() == [0, 0, 1]
    assert [part.tolist() for part in table.items()] == [[5, 9], [50, 90], [2]]
    assert table.assign_arange_().tolist() == [2]
    assert [part.tolist() for part in table.items(1)] == [[5], [0], [2]]
