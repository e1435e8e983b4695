"""nsqlookupd: discovery of topics and the daemons that serve them."""
