"""What the explorer has read of the store, kept for as long as it holds."""
