//! The `drawbridge` program.

fn main() {}
