"""Many peers in one process, on virtual time."""
