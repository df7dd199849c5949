"""Files in the data folder: paths, write access, the index manifest, the vector store."""
