"""One user as an autonomous program: facts in, effects out. No I/O, no clock, no chance of its own."""
