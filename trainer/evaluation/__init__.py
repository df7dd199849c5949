"""How well it is found again: ranks, recall, forgetting."""
