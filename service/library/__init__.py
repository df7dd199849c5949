"""The library as a whole: videos, deletion, compaction, overview, recall matrix and metrics."""
