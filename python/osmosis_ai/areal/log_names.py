"""Loggers for code that takes them from AReaL (`areal.utils.logging`): the standard ones."""

from __future__ import annotations

from logging import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFO,
    WARNING,
    Formatter,
    Handler,
    Logger,
    StreamHandler,
    getLogger,
)

__all__ = [
    "getLogger",
    "Logger",
    "Handler",
    "StreamHandler",
    "Formatter",
    "CRITICAL",
    "ERROR",
    "WARNING",
    "INFO",
    "DEBUG",
]
