"""Benchmark of what people type: words, captions and unknown texts, in a library where only some videos have texts."""
