//! The configuration as operators see it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::documents::{all_paths, secret_paths};
use super::{client_certificate, env, load_text, source};
use crate::config::{Loaded, Overrides, Secret, ValueSource, assemble};

/// Something secret at each place where a file may have it. What is planted has this in it.
const PLANTED: &str = "pl4nted";
const SECRETS: &str = r#"
instance_id: one
public: { url: "https://mcp.example", trusted_proxies: [10.0.0.0/8] }
admin: { probes: "127.0.0.1:9092", bootstrap_token: { env: BOOTSTRAP } }
redis: { url: "redis://gate:pl4nted-1@redis:6379", user: gate, password: pl4nted-2, ca_bundle: [], prefix: p, timeout: 1s }
database: { url: "postgres://gate:pl4nted-3@db/gate" }
audit: { payloads: redacted, redact: [card], retention: 30d }
seal: { keys: [{ id: k1, key: cGw0bnRlZC1wbDRudGVkLXBsNG50ZWQtcGw0bnRlZC0= }] }
auth:
  mode: embedded
  login: { issuer: "https://id.example", client_id: gate, client_secret: pl4nted-4 }
  id_jag: [{ issuer: "https://id.example", jwks_uri: "https://id.example/keys?key=pl4nted-23" }]
  introspection_clients: [{ id: tickets, secret: pl4nted-5-which-is-long-enough-for-this }]
  clients:
    - { id: nightly, name: Nightly, secret: pl4nted-24-which-is-long-enough-for-this, grants: [client_credentials], scopes: [mcp:read] }
    - id: signer
      jwks: '{"keys":[{"kty":"EC","crv":"P-256","kid":"pl4nted","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}'
      grants: [authorization_code]
      redirect_uris: ["https://app.example/cb"]
  external:
    - issuer: "https://other.example"
      jwks_uri: "https://other.example/keys?key=pl4nted-6"
      introspection: { url: "https://other.example/in?a=pl4nted-7&key=pl4nted-8", client_id: gate, client_secret: pl4nted-9 }
tracing: { otlp: { endpoint: "http://u:pl4nted-10@collector:4318", headers: { authorization: pl4nted-11 } } }
limits:
  token: { requests: 5, window: 1d }
  endpoints: { a: { requests: 5 } }
  tools: [{ name: "a__*", requests: 5, per: caller, endpoint: a }]
outbound: { proxy: { url: "http://u:pl4nted-12@proxy:3128", no_proxy: [a.example] } }
backends:
  a:
    url: "https://a.example/mcp?key=pl4nted-13"
    headers: { x-key: pl4nted-14 }
    caller_headers: { X-User: "{principal.sub}" }
    identity_jwt: true
    auth: { kind: header, header: x-other, value: pl4nted-15 }
    client_certificate: { certificate: { env: CERTIFICATE }, key: { env: KEY } }
  b: { url: "https://b.example/mcp", auth: { kind: basic, user: gate, password: pl4nted-16 } }
  c:
    url: "https://c.example/mcp"
    auth: { kind: client_credentials, token_endpoint: "https://as.example/token?key=pl4nted-17", client_id: gate, client_secret: pl4nted-18, client_auth: post }
  d: { url: "https://d.example/mcp", auth: { kind: user_oauth, issuer: "https://as.example", client_id: gate, client_secret: pl4nted-19, scopes: [read] } }
  f:
    url: "https://f.example/mcp"
    auth: { kind: token_exchange, client_id: gate, client_secret: pl4nted-22, subject_token: id_token, audience: f }
  h: { url: "https://h.example/mcp", auth: { kind: id_jag, issuer: "https://as.example", client_id: gate, client_secret: pl4nted-23 } }
  g: { url: "https://g.example/mcp", auth: { kind: user_secret, header: x-key, scheme: Token, help: "https://g.example/keys" } }
  e: { command: sh, args: ["--key=pl4nted-20"], env: { KEY: pl4nted-21 }, cwd: / }
endpoints: { both: { backends: [a, b] } }
policies: [{ allow: { backends: ["*"] } }, { deny: { backends: [a], tools: ["*delete*"] }, when: { kind: service } }]
"#;

fn loaded() -> Loaded {
    let (certificate, key) = client_certificate();
    let env = [
        ("BOOTSTRAP", "pl4nted-0-0f1e2d3c4b5a69788796a5b4"),
        ("CERTIFICATE", &certificate),
        ("KEY", &format!("pl4nted\n{key}")),
    ];
    load_text(SECRETS, &env).unwrap()
}

fn shown(loaded: &Loaded) -> BTreeMap<String, (Value, ValueSource)> {
    let all = loaded.written.sources(&loaded.config, &loaded.written, |_| false);
    let count = all.len();
    let all: BTreeMap<_, _> = all.into_iter().map(|(key, value, source)| (key, (value, source))).collect();
    assert_eq!(all.len(), count, "a key is there twice");
    all
}

/// A key as the schema has it: names that the operator chooses are `NAME`, numbers of a list are left out.
fn in_schema(key: &str) -> String {
    let mut path = String::new();
    let mut above = "";
    for part in key.split('.') {
        let is_name = matches!(above, "backends" | "endpoints" | "headers" | "env");
        let (part, list) = part.split_once('[').map_or((part, ""), |(part, _)| (part, "[]"));
        path = format!(
            "{path}{}{}{list}",
            if path.is_empty() { "" } else { "." },
            if is_name { "NAME" } else { part }
        );
        above = part;
    }
    path
}

#[test]
fn no_secret_is_shown() {
    let loaded = loaded();
    let all = shown(&loaded);
    for (key, (value, _)) in &all {
        assert!(!value.to_string().contains(PLANTED), "{key}: {value}");
        assert!(!value.to_string().contains("cGw0bnRl"), "{key}: {value}");
    }
    let set = json!({ "set": true });
    for path in secret_paths() {
        let mut of_it = all.iter().filter(|(key, _)| in_schema(key) == path).peekable();
        assert!(of_it.peek().is_some(), "nothing is planted at {path}");
        assert!(of_it.all(|(_, (value, _))| *value == set), "{path}");
    }
    assert_eq!(all["backends.a.url"].0, "https://a.example/mcp?redacted");
    assert_eq!(all["tracing.otlp.endpoint"].0, "http://collector:4318/");
    assert_eq!(all["auth.external[0].introspection.url"].0, "https://other.example/in?redacted");
    assert_eq!(all["backends.e.args"].0, json!({ "set": true, "count": 1 }));
    let told = (json!("{principal.sub}"), ValueSource::File);
    assert_eq!(all["backends.a.caller_headers.x-user"], told);
}

#[test]
fn every_key_is_shown() {
    let shown: Vec<String> = shown(&loaded()).keys().map(|key| in_schema(key)).collect();
    // It only says how to read the file.
    let elsewhere = ["auth.i_know_this_is_open"];
    let missing = |path: &String| {
        let is_shown = |key: &String| {
            key.strip_prefix(path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        !shown.iter().any(is_shown) && !elsewhere.contains(&path.as_str())
    };
    let missing: Vec<String> = all_paths().into_iter().filter(missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_value_says_where_it_is_from() {
    let list = r#"{ "mcpServers": { "Listed": { "command": "sh", "env": { "A": "b" } } } }"#;
    let text = "limits: { max_streams: 7 }\npublic: { url: \"http://localhost:1\" }\nbackends: { a: { url: \"https://a.example/mcp\", headers: { x: { env: KEY }, X-Other: y } } }\noutbound: { proxy: environment }";
    let overrides = Overrides {
        listen: Some("127.0.0.1:1".parse().unwrap()),
        admin_listen: Some("127.0.0.1:2".parse().unwrap()),
        database: Some(Secret::new("sqlite:x")),
        public_url: Some("http://localhost:9".to_owned()),
        ..Overrides::default()
    };
    let env = env(&[
        ("KEY", "pl4nted"),
        ("HTTPS_PROXY", "http://u:pl4nted@proxy:1"),
        ("DRAWBRIDGE_ADMIN_LISTEN", "127.0.0.1:2"),
        // A flag has won over it.
        ("DRAWBRIDGE_LISTEN", "127.0.0.1:7"),
    ]);
    let (file, list) = (source("drawbridge.yaml", text), source("mcp.json", list));
    let loaded = assemble(Some(file), Some(list), &env, &overrides).unwrap();
    let all = shown(&loaded);
    for (key, value, source) in [
        ("limits.max_streams", json!(7), ValueSource::File),
        ("limits.max_sessions", json!(100_000), ValueSource::Default),
        ("limits.session_idle", json!("30m"), ValueSource::Default),
        ("audit.retention", json!("90d"), ValueSource::Default),
        ("public.listen", json!("127.0.0.1:1"), ValueSource::Flag),
        ("public.url", json!("http://localhost:9/"), ValueSource::Flag),
        ("admin.listen", json!("127.0.0.1:2"), ValueSource::Environment),
        ("database.url", json!({ "set": true }), ValueSource::Flag),
        ("outbound.proxy.url", json!({ "set": true }), ValueSource::Environment),
        ("backends.a.url", json!("https://a.example/mcp"), ValueSource::File),
        ("backends.a.era", json!("auto"), ValueSource::Default),
        ("backends.a.headers.x", json!({ "set": true }), ValueSource::Environment),
        ("backends.a.headers.x-other", json!({ "set": true }), ValueSource::File),
        ("backends.listed.command", json!("sh"), ValueSource::List),
        ("backends.listed.env.A", json!({ "set": true }), ValueSource::List),
        ("backends.listed.timeout", json!("1h"), ValueSource::Default),
        ("redis.url", json!(null), ValueSource::Default),
        ("auth.mode", json!("none"), ValueSource::Default),
        ("log.level", json!("info"), ValueSource::Default),
    ] {
        assert_eq!(all.get(key), Some(&(value, source)), "{key}");
    }
}

#[test]
fn what_can_not_change_before_a_restart_is_from_where_it_was_at_the_start() {
    let start = load_text("audit: { queue: 5 }", &[]).unwrap();
    let later = load_text("limits: { max_streams: 7 }", &[]).unwrap();
    let all = later.written.sources(&start.config, &start.written, |key| key == "audit.queue");
    let of = |key: &str| all.iter().find(|(known, ..)| known == key).map(|(.., source)| *source);
    assert_eq!(of("audit.queue"), Some(ValueSource::File));
    assert_eq!(of("limits.max_streams"), Some(ValueSource::File));
}
