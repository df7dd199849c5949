"""What is learned: encoders and adapters as plain torch modules."""
