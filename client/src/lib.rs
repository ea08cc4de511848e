//! The protocol's types, and an async client for skipd over its socket or the bus.
