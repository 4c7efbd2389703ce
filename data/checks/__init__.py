"""Checks of the content of a data set: scans, labels, splits, the sensor, and its likeness."""
