//! Runs the demo server: `demo_server [ADDRESS]`, or `demo_server --stdio`. The bound URL is the first line on
//! stderr.

use std::io::Write as _;

use drawbridge_demo::Demo;
use tokio_util::task::TaskTracker;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let demo = Demo::new(TaskTracker::new());
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    if address == "--stdio" {
        return demo.stdio(tokio::io::stdin(), tokio::io::stdout()).await;
    }
    let listener = tokio::net::TcpListener::bind(address).await?;
    writeln!(std::io::stderr(), "http://{}/mcp", listener.local_addr()?)?;
    let interrupted = async { drop(tokio::signal::ctrl_c().await) };
    demo.serve(listener, interrupted).await
}
