"""What stands together along a street, by its share."""

from data.simulator.buildings import fence, noise_barrier, shed, stairs, wall
from data.simulator.cars import car, van
from data.simulator.furniture import (
    bench,
    big_sign,
    bin_box,
    bollard,
    column,
    container,
    delineator,
    lamp,
    person_like,
    sign,
    table,
)
from data.simulator.houses import house
from data.simulator.lanes import mixed
from data.simulator.lorries import trailer, truck
from data.simulator.people import sitting_person
from data.simulator.plants import bush, fir, hedge, tall_grass, thicket, tree, young_tree
from data.simulator.riders import bicycle, motorcycle

PARKED = mixed((0.87, car), (0.08, van), (0.015, truck), (0.015, trailer), (0.02, motorcycle))
FURNITURE = mixed(
    (3, tree),
    (2, young_tree),
    (3, lamp),
    (3, sign),
    (3, bollard),
    (2, bin_box),
    (1, column),
    (2, person_like),
    (1, bench),
    (2, bicycle),
    (1, motorcycle),
    (1, bush),
)
CAFE = mixed((3, table), (2, sitting_person), (1, bench), (1, person_like), (1, column))
GARDEN = mixed((3, hedge), (3, fence), (2, wall), (2, bush), (1, tree), (1, stairs), (1, bin_box))
GREEN = mixed((4, bush), (3, tree), (2, thicket), (1, hedge), (1, fir), (1, young_tree))
WILD = mixed((5, thicket), (2, tree), (2, bush), (1, fir), (1, tall_grass))
VERGE = mixed((4, tall_grass), (3, delineator), (1, sign), (0.3, big_sign))
FRONTS = mixed((6, house), (1, shed), (0.5, noise_barrier))
TOWN_BEHIND = mixed((4, house), (4, tree), (1, fir), (0.5, shed))
WOODS = mixed((6, tree), (2, fir), (3, thicket), (0.5, house))
CLUTTER = mixed(
    (2, bicycle), (1, motorcycle), (2, bin_box), (2, person_like), (1, container), (1, bollard)
)
