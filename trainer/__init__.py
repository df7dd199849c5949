"""How it is learned: data sets, continual-learning methods, losses and evaluation."""
