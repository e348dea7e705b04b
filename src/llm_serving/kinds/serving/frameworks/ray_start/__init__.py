"""What Ray's processes on this machine run before Ray itself: this folder is in their PYTHONPATH."""
