"""Drawn videos with captions, for the samples on the library page and the demo."""
