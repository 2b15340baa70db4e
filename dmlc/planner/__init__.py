"""Deciding where ops run: batch dims, candidate places, and the integer programme that picks among them."""
