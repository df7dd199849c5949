"""An in-memory inverted index of the words in videos' texts."""
