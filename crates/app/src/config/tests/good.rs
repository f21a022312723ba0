//! Good files, interpolation, layers, and what never shows a secret.

use std::time::Duration;

use super::{load_text, load_with};
use crate::config::{
    AuthMode, BackendAuth, BackendKind, ClientAuth, ClientGrant, ClientProof, Config, Era, HttpBackend,
    LogFormat, OtlpProtocol, Overrides, Password, Proxy, Redis, Secret, StdioBackend, TokenSource, Transport,
    UserOAuth,
};

/// A file as a team would have it.
const TEAM: &str = r#"
public:   { listen: 0.0.0.0:8080, url: https://mcp.example.com, allowed_origins: ["https://App.example.com:443"] }
admin:    { listen: 127.0.0.1:9090, probes: 0.0.0.0:9091 }
redis:    { url: "rediss://redis:6379", ca_bundle: [], timeout: 1s }
data_dir: /var/lib/drawbridge
seal:     { keys: [{ id: k1, key: { env: SEAL_K1 } }] }
auth:     { mode: none, i_know_this_is_open: true }
log:      { format: json, level: "info,drawbridge_upstream=debug" }
limits:   { max_body_bytes: 1MiB, max_result_bytes: 1000000, session_idle: 1h 30m, max_sessions: 5 }
outbound: { proxy: none, allow_networks: [10.0.0.0/8, "fd00::/8"] }
backends:
  tickets: { url: https://tickets.internal/mcp, timeout: 60s, headers: { Authorization: { env: TICKETS } }, era: modern }
  files:   { command: npx, args: [-y, "@modelcontextprotocol/server-filesystem", 8080, true], env: { LOG: warn } }
  legacy:  { url: http://old.internal/sse, transport: sse }
endpoints:
  support: { backends: [tickets, files] }
"#;

const TEAM_ENV: &[(&str, &str)] =
    &[("SEAL_K1", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="), ("TICKETS", "Bearer hunter2")];

/// Each kind of credential.
const CREDENTIALS: &str = r#"
auth: { mode: embedded, login: { issuer: "https://id.example", client_id: g } }
backends:
  header: { url: http://a/mcp, auth: { kind: header, header: X-Key, value: { env: SECRET } } }
  basic:  { url: http://a/mcp, auth: { kind: basic, user: ann, password: { env: SECRET } } }
  own:    { url: http://a/mcp/, auth: { kind: client_credentials, issuer: https://as.example, client_id: g, client_secret: { env: SECRET }, scopes: [a, b] } }
  post:   { url: http://a/mcp, auth: { kind: client_credentials, token_endpoint: "http://localhost:1/t", client_id: g, client_secret: { env: SECRET }, client_auth: post, resource: "" } }
  named:  { url: http://a/mcp, auth: { kind: client_credentials, client_id: g, client_secret: { env: SECRET } } }
  users:  { url: http://a/mcp, auth: { kind: user_oauth } }
  known:  { url: http://a/mcp, auth: { kind: user_oauth, issuer: https://as.example, client_id: g, client_secret: { env: SECRET }, scopes: [a], resource: "https://a/r" } }
  keys:   { url: http://a/mcp, auth: { kind: user_secret } }
  jag:    { url: http://a/mcp, auth: { kind: id_jag, issuer: https://as.example, client_id: g, client_secret: { env: SECRET }, client_auth: post, scopes: [a], resource: "https://a/r" } }
  told:   { url: http://a/mcp, caller_headers: { X-User: "<{principal.sub}>", x-groups: "{principal.groups}" }, identity_jwt: true, auth: { kind: user_oauth } }
  token:  { url: http://a/mcp, auth: { kind: user_secret, header: X-Key, scheme: Token, help: "https://a/keys" } }
"#;

/// Each kind of rule.
const RULES: &str = r#"
auth: { mode: tokens, step_up: challenge }
backends:
  a: { url: http://a/mcp, read_tools: ["get_*"], trust_annotations: true, elicitation_hosts: ["*.example", "::1"] }
  b: { command: sh }
endpoints:
  some: { backends: [a, b], tools: { allow: ["a__*"], deny: ["*__delete_*"] }, prompts: { deny: ["*"] }, resources: {} }
policies:
  - allow: { backends: [a], tools: ["get_*"], prompts: [p], resources: ["docs://*"] }
    when:
      { kind: user, subjects: ["ann", "u*"], groups_any: [x], scopes_all: [mcp:read], clients: ["https://claude.ai/*"],
        endpoints: [/mcp, some, a], networks: [10.0.0.0/8, "2001:db8::/32"] }
  - deny: { backends: ["*"] }
"#;

/// Good files with the environment they need: name, text, variables.
#[expect(clippy::type_complexity, reason = "a table")]
pub(super) const GOOD: &[(&str, &str, &[(&str, &str)])] = &[
    ("empty", "{}", &[]),
    ("team", TEAM, TEAM_ENV),
    ("rules", RULES, &[]),
    ("example", include_str!("../reference.yaml"), &[]),
    ("json", r#"{"backends": {"a": {"url": "http://a/mcp"}}, "endpoints": {"b": {"backends": ["a"]}}}"#, &[]),
    ("sections without keys", "public:\nlimits:\nbackends:\nendpoints:\nseal:\n  keys:\n", &[]),
    (
        "interpolated",
        "backends:\n  a:\n    url: http://${HOST}/mcp\n    timeout: ${T:-3s}\n",
        &[("HOST", "a")],
    ),
    (
        "anchors",
        "backends:\n  a: &a { url: http://a/mcp }\n  b: *a\n  c:\n    <<: *a\n    timeout: 3s\n",
        &[],
    ),
    ("credentials of backends", CREDENTIALS, &[("SECRET", "hunter2")]),
    ("clients of the operator's own", CLIENTS, &[("SECRET", "0123456789abcdef0123456789abcdef")]),
    ("ipv6", "public: { listen: \"[::1]:0\" }\n", &[]),
    ("proxy", "outbound:\n  proxy: { url: \"http://me:pw@proxy:3128\", no_proxy: [a.internal] }\n", &[]),
];

const CLIENTS: &str = r#"
auth:
  mode: embedded
  id_jag: [{ issuer: https://login.example.com }, { issuer: https://other.example.com, jwks_uri: https://other.example.com/keys }]
  clients:
    - { id: nightly, secret: { env: SECRET }, grants: [client_credentials], scopes: ["mcp:read"] }
    - { id: reports, name: Reports, secret: { env: SECRET }, grants: [authorization_code, id_jag], redirect_uris: ["https://app.example.com/cb"] }
    - id: signer
      jwks: '{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}'
      grants: [client_credentials]
"#;

fn good(text: &str, variables: &[(&str, &str)]) -> Config {
    load_text(text, variables).map_err(|problems| problems.to_string()).unwrap().config
}

fn http(config: &Config, name: &str) -> HttpBackend {
    match &config.backends[name].kind {
        BackendKind::Http(http) => http.clone(),
        BackendKind::Stdio(_) => panic!("{name} is stdio"),
    }
}

fn stdio(config: &Config, name: &str) -> StdioBackend {
    match &config.backends[name].kind {
        BackendKind::Stdio(stdio) => stdio.clone(),
        BackendKind::Http(_) => panic!("{name} is HTTP"),
    }
}

#[test]
fn the_file_of_a_team() {
    let config = good(TEAM, TEAM_ENV);
    assert_eq!(config.public.listen, "0.0.0.0:8080".parse().unwrap());
    assert_eq!(config.public.allowed_origins, ["https://app.example.com"]);
    assert_eq!(config.admin.probes, Some("0.0.0.0:9091".parse().unwrap()));
    assert_eq!((config.seal_keys[0].id.as_str(), config.seal_keys[0].key()), ("k1", &[0; 32]));
    assert_eq!(config.auth.mode, AuthMode::None);
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.limits.max_body_bytes, 1 << 20);
    assert_eq!(config.limits.max_result_bytes, 1_000_000);
    assert_eq!(config.limits.session_idle, Duration::from_secs(90 * 60));
    assert_eq!(config.outbound.allow_networks, ["10.0.0.0/8", "fd00::/8"]);
    assert_eq!(config.backends["tickets"].timeout, Duration::from_secs(60));
    assert_eq!(config.backends["tickets"].era, Era::Modern);
    assert_eq!(http(&config, "tickets").headers["authorization"].expose(), "Bearer hunter2");
    assert_eq!(http(&config, "legacy").transport, Transport::Sse);
    assert_eq!(
        stdio(&config, "files").args,
        ["-y", "@modelcontextprotocol/server-filesystem", "8080", "true"]
    );
    assert_eq!(config.endpoints["support"].backends, ["tickets", "files"]);
}

#[test]
fn the_operators_own_clients() {
    let config = good(CLIENTS, &[("SECRET", "0123456789abcdef0123456789abcdef")]);
    assert_eq!(config.auth.id_jag.len(), 2);
    let [nightly, reports, signer] = &config.clients[..] else { panic!("{:?}", config.clients) };
    assert_eq!((nightly.scopes.len(), reports.scopes.len(), signer.scopes.len()), (1, 2, 2));
    assert_eq!(nightly.grants, [ClientGrant::ClientCredentials].into());
    assert!(matches!(signer.proof, ClientProof::Keys(_)) && signer.name.is_none());
    assert_eq!(reports.redirect_uris, ["https://app.example.com/cb"]);
}

#[test]
fn every_good_file_is_accepted() {
    for (name, text, variables) in GOOD {
        if let Err(problems) = load_text(text, variables) {
            panic!("{name}: {problems}");
        }
    }
}

#[test]
fn sizes_and_durations_in_all_forms() {
    for (written, bytes) in [
        ("7", 7),
        ("\"7\"", 7),
        ("7B", 7),
        ("7 KiB", 7 << 10),
        ("7kB", 7000),
        ("7MB", 7_000_000),
        ("2GiB", 2 << 30),
    ] {
        let config = good(&format!("limits: {{ max_body_bytes: {written} }}"), &[]);
        assert_eq!(config.limits.max_body_bytes, bytes, "{written}");
    }
    for (written, millis) in [("250ms", 250), ("2s", 2000), ("1m 1s", 61_000), ("1h", 3_600_000), ("0s", 0)] {
        let config = good(&format!("drain: {{ deadline: {written} }}"), &[]);
        assert_eq!(config.drain.deadline, Duration::from_millis(millis), "{written}");
    }
}

#[test]
fn variables_are_replaced_in_plain_values_only() {
    let text = "data_dir: ${DIR}/data\nbackends:\n  a:\n    command: ${CMD:-npx}\n    args: [\"${DIR}\", '--x=${DIR}', $DIR]\n";
    let config = good(text, &[("DIR", "/srv")]);
    assert_eq!(config.data_dir, std::path::PathBuf::from("/srv/data"));
    assert_eq!(stdio(&config, "a").command, "npx");
    assert_eq!(stdio(&config, "a").args, ["${DIR}", "--x=${DIR}", "$DIR"]);
}

#[test]
fn a_variable_in_quotes_is_a_notice() {
    let text =
        "backends:\n  a:\n    url: http://a/mcp\n    headers:\n      Authorization: \"Bearer ${TOKEN}\"\n";
    let notices = load_text(text, &[("TOKEN", "hunter2")]).unwrap().notices;
    assert_eq!(
        notices[0].to_string(),
        "drawbridge.yaml:5:7: backends.a.headers.Authorization: `${...}` in quotes is passed on as it is"
    );
}

#[test]
fn a_secret_from_a_file_loses_its_line_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hunter2\r\n").unwrap();
    let text = format!(
        "backends: {{ a: {{ url: \"http://a/\", headers: {{ x-key: {{ file: \"{}\" }} }} }} }}",
        file.path().display()
    );
    assert_eq!(http(&good(&text, &[]), "a").headers["x-key"].expose(), "hunter2");
}

#[test]
fn the_proxy_of_the_environment_is_honoured_unless_switched_off() {
    let variables = &[("HTTPS_PROXY", "http://proxy:3128"), ("no_proxy", "a,b"), ("HTTP_PROXY", "")];
    let expected =
        Proxy { https: Some(Secret::new("http://proxy:3128")), http: None, no_proxy: "a,b".to_owned() };
    assert_eq!(good("{}", variables).outbound.proxy, Some(expected.clone()));
    assert_eq!(good("outbound: { proxy: environment }", variables).outbound.proxy, Some(expected));
    assert_eq!(good("outbound: { proxy: none }", variables).outbound.proxy, None);
    let own = good("outbound: { proxy: { url: \"http://own:1\", no_proxy: [x, y] } }", variables);
    let own = own.outbound.proxy.unwrap();
    assert_eq!((own.https.unwrap().expose(), own.no_proxy.as_str()), ("http://own:1", "x,y"));
}

#[test]
fn flags_win_over_the_file() {
    let overrides = Overrides {
        listen: Some("127.0.0.1:1".parse().unwrap()),
        admin_listen: Some("127.0.0.1:2".parse().unwrap()),
        public_url: Some("https://b.example".to_owned()),
        auth: Some(AuthMode::None),
        instance_id: Some("two".to_owned()),
        ..Overrides::default()
    };
    let file =
        "instance_id: one\npublic: { listen: 0.0.0.0:80, url: https://a.example }\nauth: { mode: tokens }\n";
    let config = load_with(file, &overrides).unwrap().config;
    assert_eq!(config.public.listen, "127.0.0.1:1".parse().unwrap());
    assert_eq!(config.admin.listen, "127.0.0.1:2".parse().unwrap());
    assert_eq!(config.public.url.unwrap().as_str(), "https://b.example/");
    assert_eq!(config.instance_id.as_deref(), Some("two"));
}

#[test]
fn no_secret_shows_in_debug() {
    let text = r#"
seal: { keys: [{ id: k, key: { env: KEY } }] }
outbound: { proxy: { url: "http://me:hunter2@proxy" } }
backends:
  a: { url: "https://a/mcp?key=hunter2", headers: { x: hunter2, y: { env: TOKEN } } }
  b: { command: x, args: [--token, "${TOKEN}", hunter2], env: { A: hunter2, B: { env: TOKEN } } }
  c: { url: "https://a/mcp?key=${TOKEN}", headers: { x: "hunter2" } }
"#;
    let key = "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMjEyMzQ=";
    let loaded = load_text(text, &[("TOKEN", "hunter2"), ("KEY", key)]).unwrap();
    let shown =
        format!("{loaded:#?} {:?}", Overrides { redis: Some(Secret::new("hunter2")), ..Default::default() });
    assert!(!shown.contains("hunter2") && !shown.contains(key) && !shown.contains("104"), "{shown}");
    assert!(shown.contains("redacted"), "{shown}");
}

const SEAL: &str = "seal: { keys: [{ id: k, key: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= }] }\n";

#[test]
fn redis_with_all_its_keys() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hunter2\n").unwrap();
    let text = format!(
        "{SEAL}redis:\n  url: {{ env: URL }}\n  user: gate\n  password: {{ file: {} }}\n  prefix: a:b\n  timeout: 500ms\n",
        file.path().display(),
    );
    let config = good(&text, &[("URL", "rediss+sentinel://x:hunter3@a,b:1/main/2")]);
    let redis = config.redis.unwrap();
    assert_eq!((redis.user.as_deref(), redis.prefix.as_str()), (Some("gate"), "a:b"));
    assert_eq!(redis.password, Some(Password::File(file.path().to_owned())));
    assert_eq!((redis.timeout, redis.url.database), (Duration::from_millis(500), 2));
    let shown = format!("{redis:?} {:?}", redis.options(&config.limits).unwrap());
    assert!(!shown.contains("hunter"), "{shown}");
}

#[test]
fn a_prefix_of_keys_has_no_braces() {
    let complaint = load_text(&format!("{SEAL}redis: {{ url: \"redis://a\", prefix: \"{{a}}\" }}"), &[]);
    let complaint = complaint.unwrap_err().to_string();
    assert!(complaint.contains("redis.prefix: not a usable prefix"), "{complaint}");
}

#[test]
fn the_url_of_a_flag_joins_what_the_file_says_of_redis() {
    let overrides = Overrides { redis: Some(Secret::new("redis://:hunter2@b:7")), ..Overrides::default() };
    let config = load_with(&format!("{SEAL}redis: {{ prefix: x }}\n"), &overrides).unwrap().config;
    let expected = Redis { prefix: "x".to_owned(), ..Redis::new("redis://:hunter2@b:7".parse().unwrap()) };
    assert_eq!(config.redis, Some(expected));
    let complaint = load_with("{}", &overrides).unwrap_err().to_string();
    assert!(
        complaint.starts_with("--redis (DRAWBRIDGE_REDIS): redis.url: instances that share"),
        "{complaint}"
    );
    assert!(complaint.contains("openssl rand -base64 32") && !complaint.contains("hunter2"), "{complaint}");
}

#[test]
fn what_may_be_missing_is_a_notice() {
    let text = "backends:\n  a: { command: drawbridge-no-such-program }\n  b: { command: ./no/such, cwd: / }\n  c: { command: sh }\n  d: { command: sh, env: { PATH: /no/such } }\n  e: { url: \"http://a/${X}\" }\n  f: { command: sh, cwd: \"/\" }\n";
    let loaded = load_text(text, &[("PATH", "/no/such:/bin:/usr/bin")]).map_err(|p| p.to_string()).unwrap();
    let notices: String = loaded.notices.iter().map(|notice| format!("{notice}\n")).collect();
    insta::assert_snapshot!(notices, @r"
    drawbridge.yaml:2:8: backends.a.command: there is no program `drawbridge-no-such-program` here: is it installed?
    drawbridge.yaml:3:8: backends.b.command: there is no program `./no/such` here: is it installed?
    drawbridge.yaml:5:8: backends.d.command: there is no program `sh` here: is it installed?
    drawbridge.yaml:6:8: backends.e.url: `${...}` in quotes is passed on as it is
    ");
    // Without a search path there is nothing to say.
    assert_eq!(load_text("backends: { a: { command: no-such-program } }\n", &[]).unwrap().notices, []);
}

#[test]
fn log_filters_of_all_forms_are_accepted() {
    for level in [
        "info",
        "WARN",
        "off",
        "3",
        "info,drawbridge_upstream=debug",
        "drawbridge_core=trace",
        "warn,[task{name}]=debug",
    ] {
        assert_eq!(good(&format!("log: {{ level: \"{level}\" }}\n"), &[]).log.level, level);
    }
}

#[test]
fn origins_of_pages_and_of_apps() {
    let text = "public: { allowed_origins: [\"HTTPS://App.example:443\", \"vscode-webview://0A-1b\"] }\n";
    assert_eq!(good(text, &[]).public.allowed_origins, ["https://app.example", "vscode-webview://0a-1b"]);
}

#[test]
fn a_collector_of_traces_is_named_in_the_file_or_in_the_environment() {
    assert_eq!(good("", &[]).otlp, None);
    assert_eq!(good("tracing: { otlp: { sample: 0.5 } }", &[("OTEL_SERVICE_NAME", "x")]).otlp, None);
    let variable = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
    let otlp =
        good("tracing: { otlp: { sample: 0.5 } }", &[variable, ("OTEL_SERVICE_NAME", "x")]).otlp.unwrap();
    assert_eq!(
        (otlp.endpoint.as_str(), otlp.sample, otlp.service_name.as_str()),
        ("http://a:4318/", 0.5, "x")
    );
    let text = "tracing:\n  otlp:\n    endpoint: http://b:4317\n    protocol: grpc\n    headers: { key: { env: KEY } }\n";
    let otlp = good(text, &[variable, ("KEY", "hunter2")]).otlp.unwrap();
    assert_eq!((otlp.endpoint.as_str(), otlp.protocol), ("http://b:4317/", OtlpProtocol::Grpc));
    assert_eq!(
        (otlp.headers["key"].expose(), otlp.sample, otlp.service_name.as_str()),
        ("hunter2", 1.0, "drawbridge")
    );
    assert!(!format!("{otlp:?}").contains("hunter2"));
}

#[test]
fn credentials_of_backends_are_what_was_written_and_never_shown() {
    let config = good(CREDENTIALS, &[("SECRET", "hunter2")]);
    assert!(!format!("{config:?}").contains("hunter2"));
    let secret = Secret::new("hunter2");
    let of = |name: &str| http(&config, name).auth.unwrap();
    let header = BackendAuth::Header { name: "x-key".to_owned(), value: secret.clone() };
    assert_eq!(of("header"), header);
    let BackendAuth::ClientCredentials(own) = of("own") else { panic!() };
    assert_eq!(own.resource.as_deref(), Some("http://a/mcp"));
    assert_eq!((own.from, own.client_auth), (TokenSource::Issuer("https://as.example".to_owned()), None));
    let BackendAuth::ClientCredentials(post) = of("post") else { panic!() };
    assert_eq!((post.resource, post.client_auth), (None, Some(ClientAuth::Post)));
    let BackendAuth::ClientCredentials(named) = of("named") else { panic!() };
    assert_eq!((named.from, named.resource), (TokenSource::Backend, None));
    assert_eq!(of("users"), BackendAuth::UserOAuth(UserOAuth::default()));
    assert!(config.backends["users"].is_personal() && !config.backends["own"].is_personal());
    let BackendAuth::IdJag(jag) = of("jag") else { panic!() };
    assert_eq!(
        (&*jag.issuer, &*jag.client_id, jag.client_secret),
        ("https://as.example", "g", Some(secret.clone()))
    );
    assert_eq!((jag.resource.as_deref(), jag.client_auth), (Some("https://a/r"), Some(ClientAuth::Post)));
    assert!(config.backends["jag"].is_personal());
    let told = http(&config, "told");
    let headers: Vec<_> = told.caller_headers.iter().map(|(name, text)| (&**name, &**text)).collect();
    assert_eq!(headers, [("x-groups", "{principal.groups}"), ("x-user", "<{principal.sub}>")]);
    assert!(told.identity_jwt && config.backends["told"].is_told_of_callers());
    assert!(!config.backends["users"].is_told_of_callers());
    let BackendAuth::UserOAuth(known) = of("known") else { panic!() };
    assert_eq!((known.client_secret, known.resource.as_deref()), (Some(secret), Some("https://a/r")));
}
