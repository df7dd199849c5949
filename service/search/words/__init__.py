"""Words of the library's texts: what each video's texts are, and an index of them that follows the catalog."""
