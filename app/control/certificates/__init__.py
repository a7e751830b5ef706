"""Where the certificates of our ports come from: made and rotated by ourselves, or followed in files of others."""
