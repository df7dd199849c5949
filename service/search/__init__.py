"""Answer text, clip, similar-video and caption queries, each from one index snapshot."""
