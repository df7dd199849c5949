"""Search: text, clip, similar and caption queries answered from one snapshot of the index."""
