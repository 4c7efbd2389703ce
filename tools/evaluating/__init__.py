"""Parts of evaluate.py."""
