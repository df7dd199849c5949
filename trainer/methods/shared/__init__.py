"""Building blocks that several methods share: replay memory, weight penalties, distillation, query maps."""
