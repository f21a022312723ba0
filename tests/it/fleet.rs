//! Several gateways as one: any instance serves any request.

mod anywhere;
mod owners;
mod streams;

use drawbridge_testkit::fleet::Fleet;
use drawbridge_testkit::gateway::{DemoBackend, Gateway, binary};

/// Three gateways in front of the demo server, spoken to in the era `era` over `transport`: `http`, `sse` or `stdio`.
async fn in_front_of_demo(transport: &str, era: &str) -> (Fleet, DemoBackend) {
    let demo = DemoBackend::start().await;
    let settings = match transport {
        "http" => format!("{{ url: \"{}\", era: {era} }}", demo.url),
        "sse" => format!("{{ url: \"{}\", transport: sse }}", demo.sse_url),
        _ => format!("{{ command: \"{}\", args: [demo-server, --stdio], era: {era} }}", binary().display()),
    };
    (Fleet::start(3, Gateway::setup().backend("demo", &settings)).await, demo)
}

/// The ways to a demo server with sessions.
const TRANSPORTS: [&str; 3] = ["http", "sse", "stdio"];
