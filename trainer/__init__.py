"""Training: task data, continual-learning methods, evaluation and the learning worker."""
