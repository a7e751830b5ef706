"""The web layer over real sockets, with fakes behind it."""
