"""A method, a dataset, a stream and a network for onepass, one file each."""
