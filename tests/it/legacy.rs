//! The face with sessions, 2025-03-26 to 2025-11-25.

mod bodies;
mod calls;
mod hosts;
mod limits;
mod passing;
mod resumption;
mod sessions;
mod streams;

use drawbridge_testkit::gateway::{DemoBackend, Gateway};

/// A gateway in front of the demo server, spoken to in the era `era`.
async fn in_front_of_demo(era: &str) -> (Gateway, DemoBackend) {
    let demo = DemoBackend::start().await;
    (Gateway::setup().url("demo", &demo.url, era).start().await, demo)
}
