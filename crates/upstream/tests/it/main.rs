//! Tests against real peers.

#[cfg(test)]
mod listening;
#[cfg(test)]
mod process;
