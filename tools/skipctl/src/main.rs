//! The command line of skipd.

fn main() {}
