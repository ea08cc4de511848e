//! Scale tables: types, files, checks, precedence and live re-targeting; no I/O beyond the files it is given.
