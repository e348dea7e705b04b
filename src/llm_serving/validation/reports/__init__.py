"""The report of a validation: how it is built, saved, shown in a terminal and compared."""
