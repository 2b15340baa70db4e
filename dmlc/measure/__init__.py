"""Measuring the machine at hand: single PyTorch calls, collectives between ranks, and what profiles of programs say of their ops."""
