"""Words and columns of a library: an inverted index of videos' texts, their metadata, and the files of both."""
