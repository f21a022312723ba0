//! Several instances as one gateway.
//!
//! [`Peers`] are the other instances: two of them speak over a [`Channel`] through the bus. [`relay`] carries a call
//! over a channel: an instance that holds what only one can hold (a process, a connection, a parked call) runs the
//! calls of clients that came to another one.

pub mod holding;
pub mod peers;
pub mod relay;

pub use holding::{Held, Ownership};
pub use peers::{Channel, Offered, Peers, Service};
