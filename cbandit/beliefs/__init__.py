"""beliefs."""
