"""A thin client for skipd over its Unix socket: `AsyncClient` for asyncio, `Client` for everything else."""

from ._blocking import BlockingGeneration, Client
from ._body import Options
from ._client import AsyncClient, find_socket
from ._errors import (
    AccessDenied,
    Busy,
    CacheTooSmall,
    Cancelled,
    ContextOverflow,
    Deadline,
    DeviceFault,
    Disconnected,
    Draining,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    NotReady,
    NothingPending,
    ProtocolError,
    Shutdown,
    SkipdError,
    SlowReader,
    TableRefused,
    TooLarge,
    Unauthenticated,
    Unreachable,
    Unsupported,
)
from ._events import Answer, Event, Finished, Text, ToolCall, Usage
from ._generation import Generation

__version__ = "0.1.0"

__all__ = [
    "AccessDenied", "Answer", "AsyncClient", "BlockingGeneration", "Busy", "CacheTooSmall", "Cancelled", "Client", "ContextOverflow",
    "Deadline", "DeviceFault", "Disconnected", "Draining", "Event", "Finished", "Generation", "Internal", "InvalidRequest",
    "MethodNotAllowed", "ModelNotFound", "NotFound", "NotReady", "NothingPending", "Options", "ProtocolError", "Shutdown", "SkipdError",
    "SlowReader", "TableRefused", "Text", "TooLarge", "ToolCall", "Unauthenticated", "Unreachable", "Unsupported", "Usage", "find_socket",
]
