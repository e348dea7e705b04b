"""What the commands of the command line and of the kinds have in common: arguments, completions, confirmation."""
