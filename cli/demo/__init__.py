"""`cinestrata demo`: renders videos, learns them and prints a report."""
