"""Which maps are foreseen from the last input."""

import pytest
import torch

import millisecond.ops.kernel_map as kernel_map
import millisecond.ops.spconv as spconv
from millisecond.ops import line_maps
from millisecond.ops.lab import spconv_networks as models
from tests.helpers.dense_oracle import draws, random_sites

SHAPE = (41, 18, 16)


@pytest.mark.parametrize(("most", "levels"), [(41, [5]), (40, [4]), (20, [3]), (1, [])])
def test_levels_from_the_first_small_one_on_come_in_one_call(most, levels, monkeypatch):
    """`most`: the largest depth of a grid that has a bitmap."""
    torch.manual_seed(0)
    network, asked, build = models.second(spconv).eval(), [], kernel_map.index_pyramid

    def counted(coords, shape, batch_size, downs, *arguments, **options):
        asked.append(1 + len(downs))
        return build(coords, shape, batch_size, downs, *arguments, **options)

    monkeypatch.setattr(kernel_map, "index_pyramid", counted)
    monkeypatch.setattr(line_maps, "too_large", lambda _, __, shapes: shapes[0][0] > most)
    with torch.no_grad():
        for seed in range(3):
            indices = random_sites(seed, 2, SHAPE, 0.1)
            features = draws(seed, torch.float32)(len(indices), 4)
            asked.clear()
            found = network(spconv.SparseConvTensor(features, indices, SHAPE, 2))
            assert asked == (levels if seed else [])
            fresh = models.second(spconv).eval()
            fresh.load_state_dict(network.state_dict())
            wanted = fresh(spconv.SparseConvTensor(features, indices, SHAPE, 2))
            assert torch.equal(found, wanted)
