"""Parts of demo.py: what is shown of a frame, and where: in a window, a film, a browser."""
