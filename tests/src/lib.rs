//! The whole product end to end: a real bus, real checkpoints, foreign clients.
