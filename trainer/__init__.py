"""Training of releases: task data, continual-learning methods, losses, evaluation and the learning worker."""
