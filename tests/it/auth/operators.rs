//! The commands for operators, and what the process does not let happen.

use std::process::Output;
use std::time::{Duration, Instant};

use drawbridge_testkit::client::Client;
use drawbridge_testkit::fleet::{Fleet, ready};
use drawbridge_testkit::gateway::{DemoBackend, Gateway, command};
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::soon;
use serde_json::Value;

use super::admin_tokens::{FIRST, guarded, status_at};

async fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = command();
    command.args(args).envs(env.iter().copied());
    soon("the program to end", command.output()).await.unwrap()
}

/// The standard output of a run that went well.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The complaint of a run that did not.
fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn tokens_are_made_listed_rotated_and_revoked_on_the_command_line() {
    let demo = DemoBackend::start().await;
    let gateway = guarded(&demo).start().await;
    ready(&gateway).await;
    let env = [("DRAWBRIDGE_ADMIN_URL", gateway.admin.as_str()), ("DRAWBRIDGE_ADMIN_TOKEN", FIRST)];
    let create = ["token", "create", "--kind", "personal", "--owner", "alice", "--name", "laptop"];
    let nobody = complaint(&run(&create, &env).await);
    assert!(nobody.contains("--create-owner"), "{nobody}");
    let made = run(&[&create[..], &["--create-owner"]].concat(), &env).await;
    let secret = said(&made).trim().to_owned();
    assert!(!String::from_utf8_lossy(&made.stderr).contains(&secret));
    assert_eq!(status_at(&gateway, "/mcp", &secret).await, 200);

    let table = said(&run(&["token", "list", "--status", "active"], &env).await);
    assert!(table.lines().count() == 2 && table.contains("laptop") && !table.contains(&secret), "{table}");
    let listed = said(&run(&["token", "list", "--json"], &env).await);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    let rotated = said(&run(&["token", "rotate", id, "--overlap", "0s"], &env).await);
    assert_eq!(status_at(&gateway, "/mcp", &secret).await, 401);
    assert_eq!(status_at(&gateway, "/mcp", rotated.trim()).await, 200);
    said(&run(&["token", "revoke", rotated.trim()], &env).await);
    assert_eq!(status_at(&gateway, "/mcp", rotated.trim()).await, 401);

    let wrong = [env[0], ("DRAWBRIDGE_ADMIN_TOKEN", secret.as_str())];
    let refused = complaint(&run(&["token", "list"], &wrong).await);
    assert!(refused.contains("refused") && !refused.contains(&secret), "{refused}");
    let file = gateway.dir().join("token");
    std::fs::write(&file, format!("{FIRST}\n")).unwrap();
    let args = ["token", "list", "--admin-url", &gateway.admin, "--admin-token-file", file.to_str().unwrap()];
    said(&run(&args, &[]).await);
}

#[tokio::test]
async fn what_is_revoked_in_the_database_itself_is_refused_by_instances_that_run() {
    let demo = DemoBackend::start().await;
    let database = PostgresDatabase::fresh().await;
    let url = database.url();
    let pending = complaint(&run(&["migrate", "--check", "--database", &url], &[]).await);
    assert!(pending.contains("0001_"), "{pending}");
    let lacking = complaint(&run(&["token", "list", "--database", &url], &[]).await);
    assert!(lacking.contains("drawbridge migrate"), "{lacking}");
    let applied = said(&run(&["migrate", "--database", &url], &[]).await);
    assert!(applied.contains("applied 0001_") && !applied.contains("password"), "{applied}");
    assert!(said(&run(&["migrate", "--check", "--database", &url], &[]).await).contains("up to date"));

    let setup = guarded(&demo).config(&format!("database: {{ url: \"{url}\" }}"));
    let fleet = Fleet::start(1, setup).await;
    let gateway = &fleet.gateways[0];
    let args =
        ["token", "create", "--database", &url, "--kind", "service", "--service", "ci", "--name", "ci"];
    let secret = said(&run(&args, &[]).await).trim().to_owned();
    assert_eq!(status_at(gateway, "/mcp", &secret).await, 200);
    said(&run(&["token", "revoke", "--database", &url, &secret], &[]).await);
    let since = Instant::now();
    while status_at(gateway, "/mcp", &secret).await != 401 {
        assert!(since.elapsed() < Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(database.run("select actor, action from audit").contains("cli"));
}

#[tokio::test]
async fn without_tokens_there_is_no_admin_api_and_that_is_said() {
    let demo = DemoBackend::start().await;
    let gateway = Gateway::setup().url("demo", &demo.url, "legacy").start().await;
    let reply = Client::new(&gateway.admin).get("/admin/v1/tokens", &[]).await;
    assert_eq!(reply.status(), 404);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert!(reply.text().await.contains("auth.mode"));
}

#[tokio::test]
async fn the_probes_own_listener_has_no_admin_api() {
    let demo = DemoBackend::start().await;
    let port = drawbridge_testkit::redis::free_port();
    let admin = format!("admin: {{ probes: 127.0.0.1:{port} }}");
    let setup = Gateway::setup().url("demo", &demo.url, "legacy").config("auth: { mode: tokens }");
    let gateway = setup.config(&admin).start().await;
    ready(&gateway).await;
    let probes = Client::new(&format!("http://127.0.0.1:{port}"));
    assert_eq!(probes.get("/healthz", &[]).await.status(), 200);
    assert_eq!(probes.get("/admin/v1/tokens", &[]).await.status(), 404);
    assert_eq!(Client::new(&gateway.admin).get("/admin/v1/tokens", &[]).await.status(), 401);
}

#[tokio::test]
async fn no_core_dump_can_be_made_of_a_gateway() {
    let demo = DemoBackend::start().await;
    let gateway = guarded(&demo).start().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.program.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
}
