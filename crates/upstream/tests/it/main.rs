//! Tests against real peers.

#[cfg(test)]
mod process;
