"""The table of keys and values, against a dict."""

import pytest
import torch

from millisecond.ops.spconv.hash import HashTable

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("key_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("value_dtype", [torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
def test_as_a_dict(device, key_dtype, value_dtype):
    generator = torch.Generator().manual_seed(0)
    table, expected = HashTable(torch.device(device), key_dtype, value_dtype, 400), {}
    for _ in range(3):
        keys = torch.randint(-20, 60, (50,), generator=generator, dtype=key_dtype)
        values = torch.randint(1, 99, (50,), generator=generator).to(value_dtype)
        table.insert(keys.to(device), values.to(device))
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            expected.setdefault(key, value)  # as spconv's on a CPU: the first stays
    keys, values, count = table.items()
    assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == expected
    assert (keys.dtype, values.dtype, int(count)) == (key_dtype, value_dtype, len(expected))
    asked = torch.arange(-30, 70, dtype=key_dtype, device=device)
    found, missing = table.query(asked)
    assert missing.dtype == torch.bool  # as in spconv: programs write ~missing
    assert missing.tolist() == [key not in expected for key in asked.tolist()]
    assert found.tolist() == [expected.get(key, 0) for key in asked.tolist()]
    assert table.query(asked, torch.full_like(found, 7))[0][missing].eq(7).all()


@pytest.mark.parametrize("device", DEVICES)
def test_values_change(device):
    table = HashTable(device, torch.int64, torch.int64)
    numbers = lambda *values: torch.tensor(values, device=device)  # noqa: E731
    asked = numbers(5, 9, 7)
    assert table.query(asked)[1].all()
    table.insert(numbers(9, 5, 9))
    assert table.insert_exist_keys(asked, numbers(50, 90, 70)).tolist() == [0, 0, 1]
    assert [part.tolist() for part in table.items()] == [[5, 9], [50, 90], [2]]
    assert table.assign_arange_().tolist() == [2]
    assert [part.tolist() for part in table.items(1)] == [[5], [0], [2]]


@pytest.mark.parametrize("device", DEVICES)
def test_of_keys_that_are_there_the_last_value_stays(device):
    """As in a dict, and the same on every run."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(500, (30000,), generator=generator)
    values = torch.arange(len(keys))
    table = HashTable(device, torch.int64, torch.int64)
    table.insert(torch.arange(0, 500, 3, device=device))
    missing = table.insert_exist_keys(keys.to(device), values.to(device))
    assert missing.dtype == torch.uint8  # as in spconv
    assert missing.tolist() == [int(key % 3 > 0) for key in keys]
    expected = {key: number for number, key in enumerate(keys.tolist()) if key % 3 == 0}
    found = (part.tolist() for part in table.items()[:2])
    assert dict(zip(*found, strict=True)) == expected


@pytest.mark.parametrize("device", DEVICES)
def test_smaller_types_are_taken(device):
    table = HashTable(device, torch.int64, torch.float32)
    keys = torch.tensor([3, 1], dtype=torch.int32, device=device)
    table.insert(keys, torch.tensor([30, 10], device=device))
    found, missing = table.query(keys)
    assert found.tolist() == [30.0, 10.0]
    assert not missing.any()


@pytest.mark.parametrize("device", DEVICES)
def test_mistakes_get_one_line(device):
    with pytest.raises(ValueError, match=r"key_dtype: expected torch\.int32 or .* torch\.float32"):
        HashTable(device, torch.float32, torch.int32)
    table = HashTable(device, torch.int32, torch.int32)
    keys = torch.tensor([3, 1], dtype=torch.int32, device=device)
    for call in (table.insert, table.query, table.insert_exist_keys):
        with pytest.raises(ValueError, match=r"keys: torch\.int64 does not fit into .*int32"):
            call(keys.long() + (1 << 32), keys)  # 3 and 1, if they were cut off
        with pytest.raises(ValueError, match=r"values: \[1\] for 2 keys, expected \[N\]"):
            call(keys, keys[:1])
        with pytest.raises(ValueError, match=r"values: torch\.float32 does not fit"):
            call(keys, keys.float())
        with pytest.raises(ValueError, match=r"keys: expected \[N\], got \[2, 1\]"):
            call(keys[:, None], keys)
        with pytest.raises(ValueError, match="keys: on meta, the table is on"):
            call(keys.to("meta"), keys)
    with pytest.raises(ValueError, match=r"values: torch\.int16, expected torch\.int32"):
        table.query(keys, keys.short())
    assert table.items()[2] == 0
