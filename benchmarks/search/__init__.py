"""What a search costs: end to end, over its bounds, beside rivals, under load, and while a release is published."""
