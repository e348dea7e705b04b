"""The kind `serving`: models behind one endpoint, resolved into roles, processes and their numbers."""
