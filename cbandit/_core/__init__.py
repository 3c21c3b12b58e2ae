"""What every room stands on: checks, devices, random streams, files, processes."""
