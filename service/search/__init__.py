"""Search: text, clip, similar and caption queries, answered from one index snapshot."""
