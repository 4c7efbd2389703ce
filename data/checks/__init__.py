"""Checks of what a data set holds: scans, labels, splits, the sensor, and its likeness."""
