"""Quality of the confidence of searches."""
