"""One job at a time: reservations."""
