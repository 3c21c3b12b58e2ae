"""What is believed of a function before and after data."""
