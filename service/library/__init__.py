"""The library as a whole: videos, deletion, compaction, recall matrix and metrics."""
