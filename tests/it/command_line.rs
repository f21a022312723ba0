//! The command line, which is a contract.

use std::process::{Output, Stdio};
use std::time::Duration;

use drawbridge_testkit::client::{Client, Modern, Session, text};
use drawbridge_testkit::gateway::{DemoBackend, Program, binary, command};
use drawbridge_testkit::{eventually, soon};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

/// Runs the program to its end.
async fn run(args: &[&str]) -> Output {
    let mut command = command();
    command.args(args);
    soon("the program to end", command.output()).await.unwrap()
}

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn write(dir: &TempDir, name: &str, content: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_version_is_that_of_the_package() {
    let output = run(&["--version"]).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(utf8(&output.stdout), format!("drawbridge {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn quickstart_prints_settings_that_work() {
    let mut command = command();
    command.args(["quickstart", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed = String::new();
    soon("the settings", async {
        while !printed.contains("Stop it with Ctrl-C") {
            printed.push_str(&lines.next_line().await.unwrap().expect("it ended"));
            printed.push('\n');
        }
    })
    .await;
    let public = printed.lines().find_map(|l| l.strip_prefix("listening public=")).unwrap();
    assert!(printed.lines().any(|l| l.starts_with("listening admin=http://127.0.0.1:")));
    // All that is to be pasted names one URL.
    let url = printed.lines().find(|l| l.starts_with("    http://")).unwrap().trim();
    assert_eq!(url, format!("{public}/mcp"));
    let quoted: Value =
        printed.lines().find_map(|l| serde_json::from_str(l.trim()).ok()).expect("settings in JSON");
    assert_eq!(quoted["mcpServers"]["drawbridge"]["url"], url);
    for host in ["claude mcp add --transport http drawbridge", "npx mcp-remote", "[mcp_servers.drawbridge]"] {
        assert!(printed.contains(host), "{printed}");
    }

    let client = Client::new(public);
    let session = Session::open(&client, "/mcp", "2025-11-25", json!({})).await;
    let tools = session.call("tools/list", json!({})).await;
    assert!(tools["result"]["tools"].as_array().unwrap().iter().any(|t| t["name"] == "echo"));
    assert_eq!(text(&session.tool("echo", json!({ "message": "hello" })).await), "hello");
    let modern = Modern::new(&client, "/mcp", json!({}));
    assert_eq!(text(&modern.tool("echo", json!({ "message": "hello" })).await), "hello");
    let mut sse = client.get("/mcp/sse", &[]).await;
    assert_eq!(sse.event().await.unwrap().name.as_deref(), Some(&b"endpoint"[..]));
    drop(sse);

    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(soon("the end", child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn quickstart_stays_on_loopback() {
    let output = run(&["quickstart", "--listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(utf8(&output.stderr).contains("loopback"), "{}", utf8(&output.stderr));
}

#[tokio::test]
async fn check_accepts_what_is_right_and_names_the_place_of_what_is_not() {
    let dir = TempDir::new().unwrap();
    let good = write(&dir, "good.yaml", "backends:\n  a: { url: \"http://127.0.0.1:1/mcp\" }\n");
    let output = run(&["check", "--config", &good]).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(utf8(&output.stdout), "ok: 1 backends, 0 named endpoints\n");

    let bad = [
        // An unknown key, with the nearest known one.
        ("backends:\n  a:\n    urll: http://127.0.0.1:1/mcp\n", ":3:5", "url"),
        ("backends:\n  a: { url: \"ftp://127.0.0.1/mcp\" }\n", ":2:", "http"),
        ("limits:\n  max_body_bytes: none\n", ":2:", "max_body_bytes"),
        ("backends:\n  Upper: { command: x }\n", ":2:3", "Upper"),
        ("endpoints:\n  e: { backends: [missing] }\n", ":2:", "missing"),
        ("public: { listen: 0.0.0.0:8080 }\n", ":1:", "auth"),
        ("a: [\n", ":", ""),
    ];
    for (yaml, place, word) in bad {
        let file = write(&dir, "bad.yaml", yaml);
        let output = run(&["check", "--config", &file]).await;
        let said = utf8(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{yaml}: {said}");
        assert!(said.starts_with(&format!("{file}{place}")), "{yaml}: {said}");
        assert!(said.contains(word), "{yaml}: {said}");
        let mut place = said[file.len() + 1..].split(':');
        let mut number = || place.next().unwrap().trim().parse::<u32>();
        assert!(number().is_ok() && number().is_ok(), "file:line:column: {said}");
        assert_eq!(utf8(&output.stdout), "");
        // Serve does not start with it either.
        let output = run(&["serve", "--config", &file]).await;
        assert_eq!(output.status.code(), Some(2), "{yaml}");
    }
    let output = run(&["check", "--config", "/nowhere/at-all.yaml"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(utf8(&output.stderr).contains("/nowhere/at-all.yaml"));
}

#[tokio::test]
async fn several_faults_are_told_at_once() {
    let dir = TempDir::new().unwrap();
    let yaml = "backends:\n  a: { url: \"ftp://x/mcp\" }\n  b: { url: \"gopher://x/mcp\" }\n";
    let file = write(&dir, "bad.yaml", yaml);
    let output = run(&["check", "--config", &file]).await;
    let said = utf8(&output.stderr);
    for line in [":2:", ":3:"] {
        assert!(said.contains(&format!("{file}{line}")), "{said}");
    }
}

#[tokio::test]
async fn serve_takes_the_servers_of_a_host() {
    let demo = DemoBackend::start().await;
    let dir = TempDir::new().unwrap();
    let servers = json!({ "mcpServers": {
        "local": { "command": binary(), "args": ["demo-server", "--stdio"] },
        "remote": { "type": "http", "url": demo.url },
        "old": { "type": "sse", "url": demo.sse_url },
    } });
    let file = write(&dir, "mcp.json", &servers.to_string());
    let mut command = command();
    command.args([
        "serve",
        "--mcp-servers",
        &file,
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    command.current_dir(dir.path());
    let (mut program, addresses) = Program::start(command, &["public", "admin"]).await;
    let client = Client::new(&addresses[0]);
    let session = Session::open(&client, "/mcp", "2025-11-25", json!({})).await;
    for backend in ["local", "remote", "old"] {
        let tool = format!("{backend}__echo");
        assert_eq!(text(&session.tool(&tool, json!({ "message": backend })).await), backend);
        let own = Session::open(&client, &format!("/mcp/{backend}"), "2025-11-25", json!({})).await;
        assert_eq!(text(&own.tool("echo", json!({ "message": backend })).await), backend);
    }
    assert!(dir.path().join("data").exists(), "the seal key is kept in ./data");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.ended().await.code(), Some(0));
}

#[tokio::test]
async fn settings_come_from_variables_too_and_flags_win() {
    let dir = TempDir::new().unwrap();
    let mut command = command();
    command.args(["serve", "--admin-listen", "127.0.0.1:0"]).current_dir(dir.path());
    command.env("DRAWBRIDGE_LISTEN", "127.0.0.1:0").env("DRAWBRIDGE_ADMIN_LISTEN", "192.0.2.1:1");
    let (program, addresses) = Program::start(command, &["public", "admin"]).await;
    assert!(
        addresses.iter().all(|a| a.starts_with("http://127.0.0.1:") && !a.ends_with(":0")),
        "{addresses:?}"
    );
    assert!(program.stderr().contains("no backend is configured"));
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = TempDir::new().unwrap();
    for (public, admin, key) in [
        (address.as_str(), "127.0.0.1:0", "public.listen"),
        ("127.0.0.1:0", address.as_str(), "admin.listen"),
    ] {
        let mut command = command();
        command.args(["serve", "--listen", public, "--admin-listen", admin]).current_dir(dir.path());
        let output = soon("the program to end", command.output()).await.unwrap();
        let said = utf8(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&address) && said.contains(key), "{said}");
        assert_eq!(utf8(&output.stdout), "", "nothing listens");
    }
    let output = run(&["demo-server", "--listen", &address]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(utf8(&output.stderr).contains(&address));
}

#[tokio::test]
async fn the_demo_server_over_stdio_answers_both_eras_and_ends_with_its_input() {
    let mut command = command();
    command.args(["demo-server", "--stdio"]).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut ask = async |id: u32, method: &str, params: Value| -> Value {
        let request = drawbridge_testkit::client::request(id, method, params);
        stdin.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        loop {
            let line = soon("an answer", lines.next_line()).await.unwrap().expect("it ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message;
            }
        }
    };
    let discovered = ask(1, "server/discover", json!({ "_meta": meta })).await;
    assert!(discovered["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{discovered}");
    let call = json!({ "name": "echo", "arguments": { "message": "stateless" }, "_meta": meta });
    assert_eq!(text(&ask(2, "tools/call", call).await), "stateless");
    let initialize = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
                             "clientInfo": { "name": "t", "version": "1" } });
    assert_eq!(ask(3, "initialize", initialize).await["result"]["protocolVersion"], "2025-06-18");
    let call = json!({ "name": "echo", "arguments": { "message": "in a session" } });
    assert_eq!(text(&ask(4, "tools/call", call).await), "in a session");
    drop(stdin);
    assert!(soon("the end", child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn the_demo_server_over_http_says_where_it_listens_and_ends_with_a_signal() {
    let (mut program, url) = drawbridge_testkit::gateway::demo_process().await;
    let base = url.strip_suffix("/mcp").unwrap();
    let session = Session::open(&Client::new(base), "/mcp", "2025-11-25", json!({})).await;
    assert_eq!(text(&session.tool("echo", json!({ "message": "hi" })).await), "hi");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.ended().await.code(), Some(0));
}

#[tokio::test]
async fn probes_may_listen_apart() {
    let dir = TempDir::new().unwrap();
    let file =
        write(&dir, "drawbridge.yaml", "admin: { listen: \"127.0.0.1:0\", probes: \"127.0.0.1:0\" }\n");
    let mut command = command();
    command.args(["serve", "--config", &file, "--listen", "127.0.0.1:0"]).current_dir(dir.path());
    let (mut program, addresses) = Program::start(command, &["public", "admin", "probes"]).await;
    for address in &addresses[1..] {
        let client = Client::new(address);
        eventually(Duration::from_secs(5), async || client.get("/readyz", &[]).await.status() == 200).await;
        assert_eq!(client.get("/healthz", &[]).await.status(), 200);
    }
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.ended().await.code(), Some(0));
}
