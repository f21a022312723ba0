//! Broken files and what the operator reads.

mod form;
mod meaning;
mod text;

use insta::assert_snapshot;
use proptest::prelude::{any, proptest};

use super::{complaint, env, load_with};
use crate::config::{AuthMode, Overrides, Secret, Source, assemble};

pub(super) use self::form::STRUCTURAL;
pub(super) use self::meaning::SEMANTIC;
pub(super) use self::text::TEXTUAL;

/// A list of broken files by name, and a test for each of what the operator reads.
macro_rules! broken_files {
    ($list:ident: $($name:ident = $text:literal says $message:literal;)*) => {
        /// The broken files: name and text.
        pub(in crate::config::tests) const $list: &[(&str, &str)] = &[$((stringify!($name), $text)),*];
        $(
            #[test]
            fn $name() {
                insta::assert_snapshot!(crate::config::tests::complaint($text), @$message);
            }
        )*
    };
}
use broken_files;

#[test]
fn a_file_that_is_too_large_or_not_utf8() {
    let complaint = |bytes: Vec<u8>| {
        let file = Source { name: "drawbridge.yaml".to_owned(), bytes };
        assemble(Some(file), None, &env(&[]), &Overrides::default()).unwrap_err().to_string()
    };
    assert_snapshot!(complaint(vec![b' '; (1 << 20) + 1]), @r"
    drawbridge.yaml:1:1: the file is larger than 1048576 bytes
      hint: is it the right file?
    ");
    assert_snapshot!(complaint(b"a: b\nc: \xff".to_vec()), @r"
    drawbridge.yaml:2:4: the file is not UTF-8
      hint: save it as UTF-8
    ");
}

#[test]
fn a_fault_of_a_flag_names_the_flag() {
    let overrides = Overrides {
        listen: Some("0.0.0.0:80".parse().unwrap()),
        public_url: Some("mcp.example.com".to_owned()),
        redis: Some(Secret::new("redis://:hunter2@a")),
        database: Some(Secret::new("mysql://:hunter2@a")),
        ..Overrides::default()
    };
    assert_snapshot!(load_with("{}", &overrides).unwrap_err(), @r"
    --public-url (DRAWBRIDGE_PUBLIC_URL): public.url: not the URL of a web server without a path
      hint: write scheme, host and port only, such as `https://mcp.example.com`
    --redis (DRAWBRIDGE_REDIS): redis.url: instances that share state need the same seal keys, and `seal.keys` has none
      hint: make one with `openssl rand -base64 32`, and give it to all instances as `seal: { keys: [{ id: k1, key: { env: DRAWBRIDGE_SEAL_K1 } }] }`
    --database (DRAWBRIDGE_DATABASE): database.url: not the URL of a database that can be used
      hint: write `postgres://USER:PASSWORD@HOST/NAME`, or `sqlite:FILE` for one instance alone
    --listen (DRAWBRIDGE_LISTEN): public.listen: anyone who reaches 0.0.0.0:80 could call every backend, since auth.mode is `none`
      hint: ask callers for a token (`auth: { mode: embedded }` or `tokens`), listen on 127.0.0.1, or say in the file `auth: { mode: none, i_know_this_is_open: true }`
    ");
    let overrides = Overrides { auth: Some(AuthMode::External), ..Overrides::default() };
    assert_snapshot!(load_with("{}", &overrides).unwrap_err(), @r"
    --auth (DRAWBRIDGE_AUTH): auth.mode: the mode `external` needs an issuer of tokens
      hint: name one: `auth: { external: [{ issuer: https://login.example.com }] }`
    ");
}

#[test]
fn a_list_of_servers_in_place_of_the_configuration() {
    let list = "{\n  // mine\n  \"mcpServers\": { \"a\": { \"command\": \"npx\" } },\n}";
    assert_snapshot!(complaint(list), @r"
    drawbridge.yaml:1:1: this is a list of MCP servers as hosts keep it, not a configuration of the gateway
      hint: pass it with `--mcp-servers`
    ");
    let other = r#"{"servers": {"a": {"type": "http", "url": "http://a/mcp"}}}"#;
    assert_eq!(complaint(other), complaint(list));
}

#[test]
fn a_file_that_grows_when_read_is_refused_in_good_time() {
    let mut aliases = "a0: &a0 [x]\n".to_owned();
    for level in 1..20 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        aliases += &format!("a{level}: &a{level} [{below}]\n");
    }
    for text in [aliases, "[".repeat(500_000), "{a: ".repeat(200_000), "- ".repeat(500_000)] {
        let lines = complaint(&text).lines().count();
        assert_eq!(lines, 2, "a problem and its hint");
    }
}

#[test]
fn no_message_repeats_a_secret() {
    for text in [
        "seal: hunter2",
        "seal: { keys: hunter2 }",
        "seal: { keys: [{ id: a, key: hunter2 }] }",
        "backends: { a: { url: \"hunter2\" } }",
        "backends: { a: { url: \"http://a/\", headers: hunter2 } }",
        "backends: { a: { url: \"http://a/\", headers: [hunter2] } }",
        "backends: { a: { url: \"http://a/\", headers: { x: [hunter2] } } }",
        "backends: { a: { url: \"http://a/\", headers: { x: { file: /hunter1, env: hunter2 } } } }",
        "backends: { a: { url: \"http://a/\", headers: { x: \"hunter2\\n\" } } }",
        "outbound: { proxy: hunter2 }",
        "outbound: { proxy: { url: \"hunter2\" } }",
        "data_dir: 1\ndrain:\n  deadline: ${TOKEN}\n",
        "limits:\n  max_sessions: ${TOKEN}\n",
        "auth:\n  mode: ${TOKEN}\n",
        "redis: { url: \"redis://u:hunter2/x@a\" }",
        "redis: { url: \"hunter2\" }",
        "public:\n  listen: ${TOKEN}\n",
    ] {
        let complaint = complaint(text);
        assert!(!complaint.contains("hunter2"), "{complaint}");
    }
}

proptest! {
    #[test]
    fn no_file_makes_the_loader_panic(
        bytes in any::<Vec<u8>>(),
        text in r"[a-z{}\[\]:,&*<!|>#%@`'\x22$ \n\t-]{0,80}",
        value in ".{0,40}",
    ) {
        let within = format!("seal:\n  keys: [{value}]\nbackends:\n  a:\n    url: {value}\n    timeout: {value}\n");
        for bytes in [bytes, text.into_bytes(), within.into_bytes()] {
            let file = Source { name: "drawbridge.yaml".to_owned(), bytes };
            drop(assemble(Some(file), None, &env(&[]), &Overrides::default()));
        }
    }
}
