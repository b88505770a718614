"""Watch a run: recordings, the live page that follows one, and reports to keep. Reads events, never data."""
