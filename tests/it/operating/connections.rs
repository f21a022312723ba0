//! More clients than there is room for.

use std::time::Duration;

use drawbridge_testkit::client::Client;
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{DemoBackend, Gateway};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::metrics::{shown, value};

const SOON: Duration = Duration::from_secs(10);

/// What a new connection is answered that asks for a path where nothing is; empty if it is closed without a word.
async fn answer(address: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may be closed before all is said.
    let _ = stream.write_all(b"GET /none HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn whoever_opens_all_connections_does_not_lock_operators_out() {
    let demo = DemoBackend::start().await;
    let setup = Gateway::setup().url("demo", &demo.url, "modern");
    let gateway = setup.config("limits: { max_connections: 3 }").start().await;
    let address = gateway.address().to_owned();
    let open = async || value(&shown(&gateway.admin).await, "drawbridge_open_connections");
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    eventually(SOON, async || open().await == 3.0).await;
    // Whether the answer gets through depends on who is faster; that there is no other does not.
    let refused = answer(&address).await;
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!(Client::new(&gateway.admin).get("/readyz", &[]).await.status(), 200);
    let text = shown(&gateway.admin).await;
    assert_eq!(value(&text, "drawbridge_connections_refused_total"), 1.0, "{text}");
    assert!(
        gateway.program.stderr().contains("a connection was one too many"),
        "{}",
        gateway.program.stderr()
    );

    silent.pop();
    eventually(SOON, async || open().await == 2.0).await;
    let served = answer(&address).await;
    assert!(served.starts_with("HTTP/1.1 404 "), "{served}");
}
