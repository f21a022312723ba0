//! Benchmarks of Drawbridge: the gateway beside a bare pass-through, nginx and no proxy at all.
//!
//! One binary, `drawbridge-bench`, holds all parts: `backend` answers, `proxy` passes through, `load` asks,
//! `run` does it side by side and counts the processor time; `fleet`, `fanout` and `steps` look at several instances with
//! a Redis, `auth` at who calls. See `README.md` in this folder.

mod auth;
mod backend;
mod body;
pub mod cli;
mod client;
mod fanout;
mod fleet;
mod json;
mod load;
mod net;
mod parked;
mod process;
mod proxy;
mod redis;
mod report;
mod run;
mod scenario;
mod sessions;
mod setup;
mod start;
mod steps;
mod streams;
mod target;
mod texts;
