//! Everything that opens a connection to a backend.

pub mod process;
