"""What surfaces are made of."""

from enum import IntEnum


class Material(IntEnum):
    """Every surface of a street has one of these; foliage is a volume into which pulses go."""

    PAINT = 0
    GLASS = 1
    RUBBER = 2
    METAL = 3
    CLOTH = 4
    SKIN = 5
    FOLIAGE = 6
    WOOD = 7
    ASPHALT = 8
    MARKING = 9
    GRASS = 10
    CONCRETE = 11
    SIGN = 12
    PLASTIC = 13
    INTERIOR = 14  # of a vehicle, behind its glass
