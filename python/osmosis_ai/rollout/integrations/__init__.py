"""Bridges between agent frameworks and the rollout context. Each needs its framework installed."""
