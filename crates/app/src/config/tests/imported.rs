//! Lists of MCP servers as hosts keep them.

use insta::assert_snapshot;
use proptest::prelude::{any, proptest};

use super::{env, load_both};
use crate::config::{BackendKind, Config, Loaded, Overrides, Source, Transport, assemble};

fn imported(list: &str) -> Loaded {
    let variables = &[("TOKEN", "hunter2"), ("HOME", "/home/me")];
    load_both("{}", list, variables).map_err(|problems| problems.to_string()).unwrap()
}

fn refused(list: &str) -> String {
    load_both("{}", list, &[]).unwrap_err().to_string()
}

fn notices(loaded: &Loaded) -> String {
    loaded.notices.iter().map(|notice| format!("{notice}\n")).collect()
}

/// `transport url`, or `command args`.
fn summary(config: &Config) -> String {
    let line = |(name, backend): (&String, &crate::config::Backend)| match &backend.kind {
        BackendKind::Http(http) => format!("{name}: {:?} {}\n", http.transport, http.url),
        BackendKind::Stdio(stdio) => format!("{name}: {} {:?}\n", stdio.command, stdio.args),
    };
    config.backends.iter().map(line).collect()
}

#[test]
fn the_file_of_claude_desktop() {
    let loaded = imported(
        r#"{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "${HOME}/files"],
      "env": { "LOG": "warn", "PORT": 8080, "TOKEN": "${TOKEN}" },
      "cwd": "/srv"
    }
  }
}"#,
    );
    assert_snapshot!(summary(&loaded.config), @r#"
    filesystem: npx ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/files"]
    "#);
    let BackendKind::Stdio(stdio) = &loaded.config.backends["filesystem"].kind else { panic!() };
    let env: Vec<_> = stdio.env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(env, [("LOG", "warn"), ("PORT", "8080"), ("TOKEN", "hunter2")]);
    assert_eq!(stdio.cwd.as_deref(), Some(std::path::Path::new("/srv")));
    assert!(loaded.notices.is_empty());
}

#[test]
fn the_file_of_vs_code_with_comments() {
    let loaded = imported(
        r#"{
  // servers of the workspace
  "inputs": [],
  "servers": {
    "github": { "type": "http", "url": "https://api.example.com/mcp", "headers": { "Authorization": "Bearer ${env:TOKEN}" } },
    "old": { "type": "sse", "url": "https://old.example.com/sse" }, /* to be removed */
    "local": { "type": "stdio", "command": "node", "args": ["server.js",], },
  },
}"#,
    );
    assert_snapshot!(summary(&loaded.config), @r#"
    github: StreamableHttp https://api.example.com/mcp
    local: node ["server.js"]
    old: Sse https://old.example.com/sse
    "#);
    let BackendKind::Http(http) = &loaded.config.backends["github"].kind else { panic!() };
    assert_eq!(http.headers["authorization"].expose(), "Bearer hunter2");
}

#[test]
fn the_urls_of_other_hosts() {
    let loaded = imported(
        r#"{ "mcpServers": {
  "cursor": { "url": "http://a/mcp" },
  "windsurf": { "serverUrl": "http://b/mcp" },
  "gemini": { "httpUrl": "http://c/mcp" },
  "cline": { "type": "streamableHttp", "url": "http://d/mcp" },
  "roo": { "transport": "streamable-http", "url": "http://e/mcp" },
  "default": { "url": "${URL:-http://f/mcp}" }
} }"#,
    );
    assert_snapshot!(summary(&loaded.config), @r#"
    cline: StreamableHttp http://d/mcp
    cursor: Auto http://a/mcp
    default: Auto http://f/mcp
    gemini: StreamableHttp http://c/mcp
    roo: StreamableHttp http://e/mcp
    windsurf: Auto http://b/mcp
    "#);
}

#[test]
fn what_is_not_used_is_a_notice() {
    let loaded = imported(
        r#"{
  "mcpServers": {
    "My Server": { "url": "http://a/mcp", "autoApprove": ["x"], "timeout": 60000 },
    "my_server": { "url": "http://b/mcp" },
    "my-server": { "url": "http://c/mcp", "disabled": false },
    "off": { "command": "x", "disabled": true },
    "SSE": { "command": "x", "description": "..." },
    "Ünï": { "command": "x" }
  }
}"#,
    );
    assert_snapshot!(summary(&loaded.config), @r#"
    my-server: Auto http://c/mcp
    my-server-2: Auto http://a/mcp
    my-server-3: Auto http://b/mcp
    n: x []
    sse-server: x []
    "#);
    assert_snapshot!(notices(&loaded), @r#"
    mcp.json:3:5: `My Server` is called `my-server-2` here
    mcp.json:3:43: `mcpServers.My Server.autoApprove` is not used here
    mcp.json:3:65: `mcpServers.My Server.timeout` is not used here
    mcp.json:4:5: `my_server` is called `my-server-3` here
    mcp.json:6:5: `off` is disabled there and left out
    mcp.json:7:5: `SSE` is called `sse-server` here
    mcp.json:7:30: `mcpServers.SSE.description` is not used here
    mcp.json:8:5: `Ünï` is called `n` here
    "#);
}

#[test]
fn faults_of_entries_are_reported_together() {
    let list = r#"{
  "mcpServers": {
    "a": { "command": "x", "env": { "KEY": "${input:key}" } },
    "b": { "url": "${NOPE}/mcp" },
    "c": { "type": "websocket", "url": "ws://a" },
    "d": {},
    "e": { "type": "http", "command": "x" },
    "f": { "command": ["x"] },
    "g": { "command": "x", "args": "y" },
    "h": { "url": "http://a", "httpUrl": "http://b" },
    "i": "http://a",
    "j": { "url": "a" },
    "k": { "url": "http://a", "args": ["x"] }
  }
}"#;
    assert_snapshot!(refused(list), @r#"
    mcp.json:3:37: mcpServers.a.env.KEY: `${input:key}` asks a person, and a gateway has none to ask
      hint: put the value into an environment variable and write `${env:NAME}`
    mcp.json:4:12: mcpServers.b.url: environment variable NOPE is not set
      hint: set NOPE where the gateway is started, or replace `${NOPE}` by its value
    mcp.json:5:12: mcpServers.c.type: the gateway does not know this type of server
      hint: use one of: stdio, http, streamable-http, sse
    mcp.json:6:5: mcpServers.d: a backend needs `url` or `command`
      hint: add `url: https://...` for a server reached over HTTP, or `command: ...` for one to start
    mcp.json:7:12: mcpServers.e.type: the type does not fit the other keys
      hint: `stdio` goes with `command`, `http` and `sse` with `url`
    mcp.json:8:12: mcpServers.f.command: expected text
      hint: write the value in quotes
    mcp.json:9:28: mcpServers.g.args: expected a list
      hint: write `["one", "two"]`
    mcp.json:10:31: mcpServers.h.httpUrl: the entry has more than one URL
      hint: keep `url` or `httpUrl`
    mcp.json:11:5: mcpServers.i: expected a mapping
      hint: write `{ "command": ... }` or `{ "url": ... }`
    mcp.json:12:12: mcpServers.j.url: not an http or https URL
      hint: write it in full, such as `https://tickets.internal/mcp`
    mcp.json:13:31: mcpServers.k.args: this key goes with `command`, but this backend has `url`
      hint: remove the key
    "#);
}

#[test]
fn a_file_that_is_no_list() {
    assert_snapshot!(refused("{\n  \"mcpServer\": {}\n}"), @r#"
    mcp.json:1:1: the file has neither `mcpServers` nor `servers`
      hint: use a file as hosts keep it: { "mcpServers": { "name": { ... } } }
    "#);
    assert_snapshot!(refused("[]"), @r#"
    mcp.json:1:1: the file is not a list of MCP servers
      hint: use a file as hosts keep it: { "mcpServers": { "name": { ... } } }
    "#);
    assert_snapshot!(refused("{\n  \"servers\": {\n}"), @r#"
    mcp.json:3:1: EOF while parsing an object
      hint: the file is JSON; comments and trailing commas are allowed
    "#);
    assert_snapshot!(refused("{ \"servers\": [] }"), @r#"
    mcp.json:1:3: servers: expected a mapping of names to servers
      hint: use a file as hosts keep it: { "mcpServers": { "name": { ... } } }
    "#);
}

#[test]
fn a_name_in_both_files_is_an_error() {
    let list = "{ \"mcpServers\": {\n  \"Tickets\": { \"url\": \"http://b/mcp\" } } }";
    let text = "backends:\n  tickets: { url: http://a/mcp }\n";
    assert_snapshot!(load_both(text, list, &[]).unwrap_err(), @r#"
    mcp.json:2:3: mcpServers.Tickets: the configuration file has a backend `tickets` too
      hint: rename or remove one of them
    "#);
}

#[test]
fn endpoints_know_imported_backends() {
    let list = r#"{ "mcpServers": { "files": { "command": "npx" } } }"#;
    let loaded = load_both("endpoints: { docs: { backends: [files] } }", list, &[]).unwrap();
    assert_eq!(loaded.config.endpoints["docs"].backends, ["files"]);
    assert_snapshot!(load_both("endpoints: { files: { backends: [files] } }", list, &[]).unwrap_err(), @r#"
    drawbridge.yaml:1:14: endpoints.files: a backend is called `files` too, and both would be `/mcp/files`
      hint: rename one of them
    "#);
}

#[test]
fn a_transport_that_is_named_is_not_probed() {
    let loaded = imported(r#"{ "servers": { "a": { "type": "http", "url": "http://a/mcp" } } }"#);
    let BackendKind::Http(http) = &loaded.config.backends["a"].kind else { panic!() };
    assert_eq!(http.transport, Transport::StreamableHttp);
}

proptest! {
    #[test]
    fn no_list_makes_the_loader_panic(
        bytes in any::<Vec<u8>>(),
        text in r#"[{}\[\]",:/*\\ a$\n-]{0,60}"#,
        name in ".{0,50}",
    ) {
        let entry = serde_json::json!({ "servers": { name: { "command": "x", "args": [text.clone()] } } });
        for bytes in [bytes, text.into_bytes(), entry.to_string().into_bytes()] {
            let list = Source { name: "mcp.json".to_owned(), bytes };
            drop(assemble(None, Some(list), &env(&[]), &Overrides::default()));
        }
    }
}

#[test]
fn the_configuration_in_place_of_the_list() {
    let configuration = "public:\n  listen: 127.0.0.1:1\nbackends:\n  a: { url: \"http://a/mcp\" }\n";
    assert_snapshot!(refused(configuration), @r"
    mcp.json:1:1: this is a configuration of the gateway, not a list of MCP servers as hosts keep it
      hint: pass it with `--config`
    ");
    assert_eq!(refused(r#"{"backends": {"a": {"url": "http://a/mcp"}}}"#), refused(configuration));
    // What is wrong with the one file does not hide what is wrong with the other.
    let both = load_both("log: { level: loud }\n", "{", &[]).unwrap_err();
    assert_snapshot!(both, @r"
    drawbridge.yaml:1:8: log.level: there is no level `loud`
      hint: use one of: error, warn, info, debug, trace, off
    mcp.json:1:1: EOF while parsing an object
      hint: the file is JSON; comments and trailing commas are allowed
    ");
}
