//! The gateway as a program: configuration, command line, wiring and life cycle.
//!
//! [`config`] reads what the operator wrote, [`wiring`] makes backends, endpoints and faces of it, [`gateway`]
//! runs them on one runtime per core and ends them in order. [`live`] goes from one configuration to the next, [`reload`]
//! says when. [`operator`] has the commands that manage a gateway. The binary only picks a subcommand.

pub mod access;
pub mod audit;
pub mod cli;
mod clients;
pub mod config;
mod fetch;
pub mod gateway;
pub mod hardening;
pub mod listener;
pub mod live;
pub mod open_files;
pub mod operator;
mod overview;
pub mod quickstart;
pub mod reload;
pub mod seal_key;
pub mod shared_state;
pub mod telemetry;
pub mod wiring;
