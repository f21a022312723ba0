//! Integration tests of the whole gateway; see `it/main.rs`.
