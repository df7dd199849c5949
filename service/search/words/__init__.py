"""The library's words: the texts of each video, and an index of them that follows the catalog."""
