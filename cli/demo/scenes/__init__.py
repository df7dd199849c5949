"""Drawn videos of the demo: the content of each video, its drawing, and its captions."""
