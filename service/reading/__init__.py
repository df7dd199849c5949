"""Reading of videos after their domain is ready: what is said in them, and what is written in the picture."""
