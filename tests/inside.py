"""The only file of the tests that knows where private names live."""
