"""Clouds in files of any kind: arrays, PCD, PLY, LAS."""
