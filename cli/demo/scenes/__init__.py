"""Drawn videos of the demo: what each video shows, how it is drawn, and its captions."""
