"""Commands that run under a reservation: the command, its guard, and the wrapper around both."""
