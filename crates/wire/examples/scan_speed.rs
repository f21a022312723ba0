//! Prints how long reading a message takes, per size and shape: `cargo run --release -p drawbridge-wire --example scan_speed`.
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a measuring program")]

use std::time::Instant;

use bytes::Bytes;
use drawbridge_wire::{Edit, Id, Message};

fn main() {
    let tool = r#"{"name":"tool_17","title":"Tool 17","description":"Does one of the things that tools do, with care.","inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"where"},"limit":{"type":"integer","minimum":1,"maximum":100},"tags":{"type":"array","items":{"type":"string"}}},"required":["path"]},"annotations":{"readOnlyHint":true}}"#;
    let list = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{}]}}}}"#, vec![tool; 270].join(","));
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{}"}}]}}}}"#,
        "x".repeat(1_000_000)
    );
    let small =
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]}}"#.to_owned();
    for (name, text) in [("small", small), ("list", list), ("1 MB text", text)] {
        let bytes = Bytes::from(text);
        let rounds = 200_000_000 / (bytes.len() + 2000);
        let start = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(
                Message::parse_trusting(std::hint::black_box(bytes.clone())).expect("a message"),
            );
        }
        let parse = start.elapsed() / u32::try_from(rounds).expect("few rounds");
        let message = Message::parse(bytes.clone()).expect("a message");
        let start = Instant::now();
        for n in 0..rounds {
            std::hint::black_box(Edit::new(&message).id(&Id::from_number(n as u64)).finish());
        }
        let edit = start.elapsed() / u32::try_from(rounds).expect("few rounds");
        println!("{name}: {} bytes, read {parse:?}, change of the id {edit:?}", bytes.len());
    }
}
