//! What operators see of the gateway.

mod calls;
mod metrics;
mod reload;
mod traces;
