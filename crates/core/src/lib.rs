//! The engine: calls, backends, endpoints and the state they need.
//!
//! A client's request is a [`call::Call`]; what comes of it is a stream of [`call::Event`]s that ends with a
//! terminal one. A downstream face (crate `front`) turns HTTP into calls and events into HTTP, an upstream face
//! (crate `upstream`) does the same for backends. The engine in between routes and merges, and knows no
//! dialect: there is no code here for one protocol version or for one pair of them.
//!
//! Must not know: axum, hyper, processes, Redis, SQL, configuration files. Start reading at [`call`], then
//! [`endpoint`].

pub mod accounts;
pub mod aggregate;
pub mod audit;
pub mod backend;
mod cache;
pub mod call;
pub mod client;
pub mod credentials;
pub mod endpoint;
pub mod event_log;
pub mod fault;
pub mod fleet;
pub mod glob;
pub mod metrics;
mod mirrored;
pub mod recalling;
pub mod request;
pub mod revocation;
pub mod rights;
pub mod rounds;
pub mod screen;
pub mod seal;
pub mod state;
pub mod tasks;
pub mod trace;
pub mod worker;

pub use backend::{Backend, BackendName, Conversation, Description};
pub use call::{Ask, AskKey, Call, Event, Events, Reply, Resume, Round, Shape};
pub use client::{Answers, Client, Principal, ProfileKey, Subject, SubjectKind};
pub use endpoint::{Conversing, Endpoint};
pub use fault::{Blame, Fault, Retry};
pub use recalling::{Keeping, Recalling};
pub use rounds::{RoundOptions, Rounds};
pub use screen::{Screen, Trust};
pub use tasks::Tasks;
