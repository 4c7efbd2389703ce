"""Drawings made from what operators and networks compute; docs/pictures.py has the list of them."""
