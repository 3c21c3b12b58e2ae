"""What the stage-wise policies share: the safe action, widths, rays."""
