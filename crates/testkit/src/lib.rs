//! Peers and helpers for the integration tests.

pub mod backend;
