"""Commands that run under a reservation: the child, its guard, and the wrapper around both."""
