//! The admin API over SQLite in memory.

mod admitted;
mod audited;
mod described;
mod managed;
mod strict;
mod world;
