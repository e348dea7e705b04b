"""Terminal output: plain data as tables."""
