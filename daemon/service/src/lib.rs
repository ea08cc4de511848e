//! The daemon: configuration, bus, socket, table store, metrics, and the engine behind them.
