"""A Delta table as a sink; its positions and epochs are transactions of the table itself."""
