"""`cinestrata demo`: render videos, learn them and print a report."""
