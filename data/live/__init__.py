"""Live sources: turns of a LiDAR from recordings, from a sensor or from simulated streets."""
