"""The pinned programs the system tests run: their Go modules, how they are built, and kwok's stages."""
