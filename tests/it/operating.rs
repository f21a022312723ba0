//! What operators see of the gateway.

mod calls;
pub(crate) mod metrics;
mod reload;
mod traces;
