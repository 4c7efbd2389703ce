"""Everything of a training run; inference needs none of it."""
