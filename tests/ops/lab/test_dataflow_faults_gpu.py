"""What the operators over lists of pairs say about wrong tensors and numbers."""

import pytest
import torch

from millisecond import ops
from millisecond.ops import Table
from millisecond.ops.lab.pairs import list_pairs, pair_map

pytestmark = pytest.mark.gpu
operators = torch.ops.millisecond_lab

# two offsets of three rows, with four pairs; 16 channels
NEIGHBOURS = [[0, -1, 1], [2, 0, -1]]
BEGIN = [0, 2, 4]


@pytest.fixture
def right():
    """Arguments of each operator that it takes."""
    pairs = list_pairs(Table(torch.tensor(NEIGHBOURS, dtype=torch.int32).cuda()), False)
    assert list(pairs.begin) == BEGIN
    neighbours, hit = pairs.table.neighbours, pairs.table.neighbours >= 0
    ends = hit.flatten().cumsum(0, dtype=torch.int32).view(2, 3)
    features, weight = torch.ones(3, 16).cuda().half(), torch.ones(2, 16, 16).cuda().half()
    layer = {"features": features, "weight": weight, "flipped": False}
    lists, rows = {"sources": pairs.sources, "begin": BEGIN}, {"row_ends": pairs.row_ends}
    by_row, layout = rows | {"by_row": pairs.by_row}, {"begin": BEGIN, "slot": [], "order": []}
    products = torch.ones(4, 16).cuda()
    centre = {"products": products[:2], "begin": BEGIN, "centre": 0, "tf32": True}
    numbers = torch.tensor([0, 1], dtype=torch.int32).cuda()
    once = {"sources": numbers, "targets": numbers, "begin": [0, 1, 2], "tf32": True}
    rest = {"bias": None, "residual": None, "relu": False}
    add = {"products": products, "count": None, "dtype": torch.float16}
    return {
        "list_pairs": {"neighbours": neighbours, "count": None, "ends": ends, "total": 4} | rows,
        "gather_rows": {"features": features, "lists": pairs.sources, "slots": 4} | layout,
        "add_products": add | by_row | layout | rest,
        "fetch_products": layer | lists | {"centre": 0, "tf32": True},
        "conv_centre": layer | by_row | centre | rest,
        "fetch_rows": layer | once | rest,
    }


WRONG = [  # operator, what is wrong, the line
    ("list_pairs", {"neighbours": torch.zeros(2, 3)}, "neighbours must be Int, is Float"),
    ("list_pairs", {"ends": torch.zeros(3, 2).int()}, r"ends must be \[2, 3\] and row_ends \[3\]"),
    ("list_pairs", {"row_ends": torch.zeros(2).int()}, r"ends must be \[2, 3\] and row_ends \[3\]"),
    ("list_pairs", {"total": 7}, "total must be the number of pairs, is 7"),
    ("gather_rows", {"begin": [0, 3, 2]}, r"begin must ascend, is \[0, 3, 2\]"),
    ("gather_rows", {"begin": []}, "begin must have up to 126 numbers, has 0"),
    ("gather_rows", {"lists": torch.zeros(3).int()}, "lists must have 4 pairs, has 3"),
    ("gather_rows", {"slot": [0], "order": [0]}, "slot and order must have 2 numbers or none"),
    ("gather_rows", {"slot": [0, 2], "order": [0, 2]}, "slot and order are out of range"),
    ("gather_rows", {"slots": -1}, r"slots must be from 0 to 2\^30, is -1"),
    ("add_products", {"products": torch.ones(3, 16)}, "offset 1 end at 4 of 3 slots"),
    ("add_products", {"by_row": torch.zeros(3).int()}, "by_row must have 4 pairs, has 3"),
    ("add_products", {"bias": torch.ones(3)}, "bias must have 16 elements, has 3"),
    ("fetch_products", {"centre": 2}, "centre must be from -1 to 1, is 2"),
    ("fetch_products", {"sources": torch.zeros(3).int()}, "sources must have 4 pairs, has 3"),
    ("fetch_products", {"weight": torch.ones(3, 16, 16).half()}, "weight must be"),
    ("conv_centre", {"centre": -1}, "centre must be an offset, is -1"),
    ("conv_centre", {"products": torch.ones(3, 16)}, r"products must be \[2, 16\], is \[3, 16\]"),
    ("fetch_rows", {"targets": torch.zeros(3).int()}, "targets must have 2 pairs, has 3"),
]


def test_right_arguments_are_taken(right):
    for name, arguments in right.items():
        getattr(operators, name)(**arguments)


@pytest.mark.parametrize(("name", "wrong", "line"), WRONG, ids=str)
def test_mistakes_get_one_line(right, name, wrong, line):
    wrong = {key: v.cuda() if isinstance(v, torch.Tensor) else v for key, v in wrong.items()}
    with pytest.raises(RuntimeError, match=line) as error:
        getattr(operators, name)(**right[name] | wrong)
    assert "\n" not in str(error.value).partition("\nException raised from")[0]


def test_too_many_offsets_and_captures_are_told_of():
    table = Table(torch.zeros(126, 4, dtype=torch.int32).cuda())
    with pytest.raises(ValueError, match="kernel_map: 126 offsets, pairs are listed of up to 125"):
        pair_map(ops.KernelMap(table, None))
    table = Table(torch.zeros(27, 4, dtype=torch.int32).cuda())
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(ValueError, match="which a CUDA graph keeps from it"),
        torch.cuda.graph(graph),
    ):
        pair_map(ops.KernelMap(table, None))
    pairs = pair_map(ops.KernelMap(table, None)).pairs  # the device works on
    assert len(pairs.sources) == 27 * 4
