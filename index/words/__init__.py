"""Words of the texts of videos: an inverted index in memory."""
