"""Benchmark of what people type: words, captions and unknown texts in one library that some videos have texts in."""
