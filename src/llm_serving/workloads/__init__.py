"""What to serve: patterns, the model and engine catalogues, the resolver and the renderer."""
