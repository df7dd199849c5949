"""What is heard and read in recordings with known words."""
