//! The gateway as a program: configuration, command line, wiring and life cycle.

pub mod cli;
pub mod config;
