//! The stateless face, 2026-07-28.

mod aggregated;
mod envelope;
pub(crate) mod kept;
mod listening;
mod lists;
mod mirrored;
mod results;
mod rounds;

use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use serde_json::Value;

const ERAS: [&str; 2] = ["legacy", "modern"];

/// A gateway in front of the demo server, spoken to in the era `era`.
async fn in_front_of_demo(era: &str) -> (Gateway, DemoBackend) {
    let demo = DemoBackend::start().await;
    (Gateway::setup().url("demo", &demo.url, era).start().await, demo)
}

/// The code of an error.
fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}
