"""Drawn videos with captions: the samples of the library page and the demo."""
