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


# Mean and standard deviation of the returned intensity, and the share of pulses that never return.
RESPONSE = (
    (0.3, 0.12, 0.08),
    (0.08, 0.05, 0.75),
    (0.05, 0.03, 0.3),
    (0.45, 0.15, 0.08),
    (0.3, 0.12, 0.05),
    (0.4, 0.08, 0.05),
    (0.35, 0.15, 0.1),
    (0.3, 0.08, 0.05),
    (0.22, 0.06, 0.03),
    (0.7, 0.1, 0.02),
    (0.36, 0.1, 0.05),
    (0.36, 0.08, 0.04),
    (0.8, 0.15, 0.03),
    (0.4, 0.12, 0.05),
)
