"""Parts of visualize.py: what is drawn, what is wrong with it, pictures, browsing."""
