"""How fast it is: ``cbandit bench NAME``, a module each, with checks beside timings."""
