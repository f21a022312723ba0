//! What operators see of the gateway.

mod calls;
mod connections;
mod limits;
pub(crate) mod metrics;
mod reload;
mod traces;
