//! Several gateways as one: any instance serves any request.

mod anywhere;
mod failures;
mod listening;
mod owners;
mod streams;

use drawbridge_testkit::fleet::Fleet;
use drawbridge_testkit::gateway::{DemoBackend, Gateway, binary};

/// Three gateways in front of the demo server, spoken to in the era `era` over `transport`: `http`, `sse` or `stdio`.
async fn in_front_of_demo(transport: &str, era: &str) -> (Fleet, DemoBackend) {
    let demo = DemoBackend::start().await;
    let settings = demo_over(transport, era, &demo);
    (Fleet::start(3, Gateway::setup().backend("demo", &settings)).await, demo)
}

/// The demo server as a backend.
fn demo_over(transport: &str, era: &str, demo: &DemoBackend) -> String {
    match transport {
        "http" => format!("{{ url: \"{}\", era: {era} }}", demo.url),
        "sse" => format!("{{ url: \"{}\", transport: sse }}", demo.sse_url),
        _ => format!("{{ command: \"{}\", args: [demo-server, --stdio], era: {era} }}", binary().display()),
    }
}

/// The ways to a demo server with sessions.
const TRANSPORTS: [&str; 3] = ["http", "sse", "stdio"];
