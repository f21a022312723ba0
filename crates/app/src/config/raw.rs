//! The file as it is written: every key optional, nothing checked beyond its own form.
//!
//! The published JSON Schema is generated from these types, so a doc comment here is what an editor
//! shows to the operator.

mod policies;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::policies::StepUp;
pub(super) use self::policies::{CallerKind, Given, Patterns, Policy, When};
use super::value::{ByteSize, Retention, SecretSource, Span};

/// The configuration of a Drawbridge gateway.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Drawbridge configuration")]
pub(super) struct File {
    /// Name of this instance in the log; made up at each start where absent.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,64}$"))]
    pub(super) instance_id: Option<String>,
    /// The listener for MCP clients.
    pub(super) public: Option<Public>,
    /// The listener for operators and orchestrators.
    pub(super) admin: Option<Admin>,
    /// Shared state in Redis, for several instances; without it state is in memory, for one.
    pub(super) redis: Option<Redis>,
    /// Durable records in SQL: tokens, users, OAuth clients and grants.
    pub(super) database: Option<Database>,
    /// The audit trail, where there is a database.
    pub(super) audit: Option<Audit>,
    /// Directory for what the gateway itself keeps, such as its seal key; default `./data`.
    pub(super) data_dir: Option<PathBuf>,
    /// The keys that seal session ids and other handles.
    pub(super) seal: Option<Seal>,
    /// Who may call.
    pub(super) auth: Option<Auth>,
    /// What is logged and how.
    pub(super) log: Option<Log>,
    /// Traces of calls.
    pub(super) tracing: Option<Tracing>,
    /// Upper bounds that keep one caller or backend from taking everything.
    pub(super) limits: Option<Limits>,
    /// Event streams to clients.
    pub(super) streams: Option<Streams>,
    /// Clean shutdown.
    pub(super) drain: Option<Drain>,
    /// Connections to HTTP backends.
    pub(super) outbound: Option<Outbound>,
    /// The MCP servers behind the gateway, by name.
    #[schemars(extend("propertyNames" = { "pattern": "^[a-z0-9-]{1,32}$", "not": { "enum": ["sse", "messages"] } }))]
    pub(super) backends: Option<BTreeMap<String, Backend>>,
    /// Paths `/mcp/{name}` in front of chosen backends, by name.
    #[schemars(extend("propertyNames" = { "pattern": "^[a-z0-9-]{1,32}$", "not": { "enum": ["sse", "messages"] } }))]
    pub(super) endpoints: Option<BTreeMap<String, Endpoint>>,
    /// Who may what at backends. One that denies wins; where there are policies, what none allows is denied. Without this
    /// key everybody may everything that their scopes allow.
    #[serde(default)]
    pub(super) policies: Given<Vec<Policy>>,
}

/// The listener for MCP clients.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Public {
    /// Address and port; default `127.0.0.1:8080`. Port 0 takes a free one.
    #[schemars(extend("pattern" = "^([0-9]{1,3}(\\.[0-9]{1,3}){3}|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$"))]
    pub(super) listen: Option<SocketAddr>,
    /// The URL under which clients reach this gateway, without a path.
    pub(super) url: Option<String>,
    /// Origins whose pages may call, such as `https://app.example.com`; none by default.
    pub(super) allowed_origins: Option<Vec<String>>,
    /// Values of the `Host` header that are accepted besides the listen address and the public URL.
    pub(super) allowed_hosts: Option<Vec<String>>,
    /// Networks of balancers whose `X-Forwarded-For` is believed, such as `10.0.0.0/8`; none by default.
    pub(super) trusted_proxies: Option<Vec<String>>,
}

/// The listener for operators and orchestrators.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Admin {
    /// Address and port; default `127.0.0.1:9090`.
    #[schemars(extend("pattern" = "^([0-9]{1,3}(\\.[0-9]{1,3}){3}|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$"))]
    pub(super) listen: Option<SocketAddr>,
    /// A further address for `/healthz`, `/readyz` and `/metrics` alone.
    #[schemars(extend("pattern" = "^([0-9]{1,3}(\\.[0-9]{1,3}){3}|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$"))]
    pub(super) probes: Option<SocketAddr>,
    /// The first token of the admin API, of at least 32 characters; it works until there is another one. Where absent,
    /// one is made at the first start and printed once.
    pub(super) bootstrap_token: Option<SecretSource>,
}

/// Shared state in Redis.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Redis {
    /// `redis://HOST`, `redis+sentinel://HOST,HOST/MASTER` or `redis+cluster://HOST,HOST`; with `rediss` over TLS.
    pub(super) url: Option<SecretSource>,
    /// User of the access control list, in place of the URL's.
    pub(super) user: Option<String>,
    /// Password, in place of the URL's; a file is read again for each connection.
    pub(super) password: Option<SecretSource>,
    /// PEM files with certificate authorities to trust besides those of the system.
    pub(super) ca_bundle: Option<Paths>,
    /// What all keys begin with; default `drawbridge`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:-]{1,64}$"))]
    pub(super) prefix: Option<String>,
    /// Deadline for a connection and for each command; default `2s`.
    pub(super) timeout: Option<Span>,
}

/// Durable records in SQL.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Database {
    /// `postgres://USER:PASSWORD@HOST/NAME`, or `sqlite:FILE`; default `drawbridge.db` in `data_dir`.
    pub(super) url: SecretSource,
}

/// The audit trail, where there is a database.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Audit {
    /// Whether calls are noted as well as what administrators do; default true.
    pub(super) calls: Option<bool>,
    /// How long entries are kept, or `forever`; default `90d`.
    pub(super) retention: Option<Retention>,
    /// Whether it is noted what was said in calls; default `off`.
    pub(super) payloads: Option<AuditPayloads>,
    /// What is taken out of that, besides what is known to be secret: names of members, or JSON pointers such as
    /// `/params/arguments/key` in which `*` is any step.
    pub(super) redact: Option<Vec<String>>,
    /// Of a request or an answer that is larger only the size is noted; default `16KiB`.
    pub(super) max_payload_bytes: Option<ByteSize>,
    /// How many calls may wait to be written; more are counted as lost. Default 10000.
    pub(super) queue: Option<NonZeroUsize>,
    /// How often there is a signed checkpoint; default `1m`.
    pub(super) checkpoint_interval: Option<Span>,
}

/// Whether it is noted what was said in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AuditPayloads {
    /// It is not.
    Off,
    /// It is, without what is secret.
    Redacted,
}

/// The keys that seal session ids and other handles.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Seal {
    /// The first key seals, all keys open; made at the first start where absent.
    pub(super) keys: Option<Vec<SealKey>>,
}

/// One seal key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SealKey {
    /// Name of the key, unique in the list.
    pub(super) id: String,
    /// 32 bytes in base64.
    pub(super) key: SecretSource,
}

/// Who may call.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Auth {
    /// How callers prove who they are; default `none`.
    pub(super) mode: Option<AuthMode>,
    /// Accepts mode `none` on an address that others can reach; default false.
    pub(super) i_know_this_is_open: Option<bool>,
    /// What people call this gateway when they log in; default `Drawbridge`.
    pub(super) name: Option<String>,
    /// How long an access token is good for, a day at most; default `1h`.
    pub(super) access_token_ttl: Option<Span>,
    /// How long a login is good for that is not used; default `30d`.
    pub(super) refresh_idle_ttl: Option<Span>,
    /// How long a login is good for, however often it is used; default `180d`.
    pub(super) refresh_absolute_ttl: Option<Span>,
    /// For how long a refresh token that was used is answered as it was then; default `2m`.
    pub(super) refresh_grace: Option<Span>,
    /// Which OAuth clients may register by themselves.
    pub(super) registration: Option<Registration>,
    /// The identity provider that users log in with; without one they sign in with tokens.
    pub(super) login: Option<Login>,
    /// Identity providers whose assertions (ID-JAG) let clients act for users who have not logged in here with a browser,
    /// in the mode `embedded`.
    pub(super) id_jag: Option<Vec<IdJag>>,
    /// Users may make personal tokens of their own at `/connections`, in the mode `embedded`; default false.
    pub(super) own_tokens: Option<bool>,
    /// OAuth clients that have not registered, each with a secret or keys, in the mode `embedded`.
    pub(super) clients: Option<Vec<NamedClient>>,
    /// Services that may ask about tokens at `/introspect` (RFC 7662), in the mode `embedded`.
    pub(super) introspection_clients: Option<Vec<IntrospectionClient>>,
    /// What is done about a tool for which a caller lacks a scope; default `hide`.
    pub(super) step_up: Option<StepUp>,
    /// Whose tokens are accepted in the mode `external`; clients are sent to the first.
    pub(super) external: Option<Vec<External>>,
}

/// An issuer of JSON Web Tokens.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct External {
    /// Exactly as in its tokens and metadata.
    pub(super) issuer: String,
    /// Audiences that are accepted besides the URL of the endpoint.
    pub(super) audiences: Option<Vec<String>>,
    /// Algorithms that are accepted; default `[RS256, ES256]`.
    pub(super) algorithms: Option<Vec<String>>,
    /// What the header `typ` may be; default `[at+jwt]`. Some providers say `jwt`.
    pub(super) types: Option<Vec<String>>,
    /// Where its keys are; default where its metadata say.
    pub(super) jwks_uri: Option<String>,
    /// Ids of clients for which it issues ID tokens: a token for one of them is no access token.
    pub(super) client_ids: Option<Vec<String>>,
    /// For how long a token of it may be good at most; default `24h`.
    pub(super) max_lifetime: Option<Span>,
    /// The claim with the groups of a subject; default `groups`.
    pub(super) groups_claim: Option<String>,
    /// How to ask it about tokens that are no JSON Web Tokens; without it these are not accepted.
    pub(super) introspection: Option<Introspection>,
}

/// How an issuer is asked about tokens (RFC 7662).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Introspection {
    /// Its introspection endpoint.
    pub(super) url: String,
    /// The gateway's `client_id` there.
    pub(super) client_id: String,
    /// Its secret, sent by HTTP Basic.
    pub(super) client_secret: SecretSource,
}

/// An identity provider whose assertions are taken.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IdJag {
    /// Exactly as in its assertions and metadata. Users of `auth.login` with the same issuer are the same users.
    pub(super) issuer: String,
    /// Where its keys are; default where its metadata say.
    pub(super) jwks_uri: Option<String>,
}

/// An OAuth client that the operator names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedClient {
    /// Its `client_id`.
    pub(super) id: String,
    /// What people read when they are asked whether they let it; default its id.
    pub(super) name: Option<String>,
    /// What it proves with who it is, by HTTP Basic or in the form; or see `jwks`.
    pub(super) secret: Option<SecretSource>,
    /// Its public keys, as the JSON text of a JWK Set: it proves with them who it is (`private_key_jwt`).
    pub(super) jwks: Option<SecretSource>,
    /// How it gets tokens.
    pub(super) grants: Vec<ClientGrant>,
    /// What it may be allowed at most; default `[mcp:read, mcp:write]`.
    pub(super) scopes: Option<Vec<String>>,
    /// Where it may be answered; needed for `authorization_code`.
    pub(super) redirect_uris: Option<Vec<String>>,
}

/// How a client gets tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientGrant {
    /// A user lets it, in a browser.
    AuthorizationCode,
    /// For itself.
    ClientCredentials,
    /// An identity provider of `auth.id_jag` lets it act for a user.
    IdJag,
}

/// A service that may ask about tokens.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IntrospectionClient {
    /// Its `client_id`.
    pub(super) id: String,
    /// What it proves that with.
    pub(super) secret: SecretSource,
}

/// Which OAuth clients may register by themselves.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Registration {
    /// Dynamic client registration (RFC 7591): `open`, `curated` (default: known hosts, and programs on the user's
    /// machine) or `closed`.
    pub(super) dcr: Option<RegistrationPolicy>,
    /// Clients whose id is the URL of a document about them: `open` (of any host), `curated` (default: of known hosts and
    /// of `cimd_hosts`) or `closed`.
    pub(super) cimd: Option<RegistrationPolicy>,
    /// Hosts whose documents about clients are accepted besides those of known ones.
    pub(super) cimd_hosts: Option<Vec<String>>,
    /// Redirect URIs that are accepted besides those of known hosts.
    pub(super) redirect_uris: Option<Vec<String>>,
}

/// Who may register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RegistrationPolicy {
    /// Anybody.
    Open,
    /// Known hosts, and programs on the user's machine.
    Curated,
    /// Nobody.
    Closed,
}

/// The identity provider that users log in with, by OpenID Connect.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    /// Its issuer, exactly as in its metadata.
    pub(super) issuer: String,
    /// The gateway's id there.
    pub(super) client_id: String,
    /// The gateway's secret there.
    pub(super) client_secret: Option<SecretSource>,
    /// What is asked for; default `[openid, email, profile]`.
    pub(super) scopes: Option<Vec<String>>,
    /// The claim that has a user's groups; default `groups`.
    pub(super) groups_claim: Option<String>,
    /// Groups of which a user must have one; all users where absent.
    pub(super) allowed_groups: Option<Vec<String>>,
}

/// How callers prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Anyone who reaches the listener may call.
    None,
    /// Bearer tokens that an administrator has issued.
    Tokens,
    /// The gateway's own authorization server.
    Embedded,
    /// Tokens of an external identity provider.
    External,
}

/// What is logged and how.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    /// One line per event as text or as JSON; default `text`.
    pub(super) format: Option<LogFormat>,
    /// Filter such as `info` or `info,drawbridge_upstream=debug`; default `info`.
    pub(super) level: Option<String>,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors: one JSON object per line.
    Json,
}

/// Traces of calls.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tracing {
    /// Where they go: to a collector of OpenTelemetry.
    pub(super) otlp: Option<Otlp>,
}

/// A collector of OpenTelemetry.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Otlp {
    /// Its URL, without `/v1/traces`; default that in `OTEL_EXPORTER_OTLP_ENDPOINT`. Without either nothing is traced.
    pub(super) endpoint: Option<String>,
    /// How it is spoken to; default `http`.
    pub(super) protocol: Option<OtlpProtocol>,
    /// Headers sent with every request to it.
    pub(super) headers: Option<BTreeMap<String, SecretSource>>,
    /// Share of the traces that begin here which is recorded, 0 to 1; default 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(super) sample: Option<f64>,
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// Protobuf over HTTP, usually at port 4318.
    #[default]
    Http,
    /// gRPC without TLS, usually at port 4317.
    Grpc,
}

/// Upper bounds that keep one caller or backend from taking everything.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    /// Body of a client request; default `4MiB`.
    pub(super) max_body_bytes: Option<ByteSize>,
    /// Header section of a client request; default `64KiB`.
    pub(super) max_header_bytes: Option<ByteSize>,
    /// JSON answer of a backend; default `16MiB`.
    pub(super) max_result_bytes: Option<ByteSize>,
    /// One server-sent event of a backend; default `16MiB`.
    pub(super) max_event_bytes: Option<ByteSize>,
    /// One line of output of a stdio backend; default `16MiB`.
    pub(super) max_line_bytes: Option<ByteSize>,
    /// Connections of clients at a time; default 20000, and fewer where the process may not open that many files.
    pub(super) max_connections: Option<NonZeroUsize>,
    /// Client sessions at a time; default 100000.
    pub(super) max_sessions: Option<NonZeroUsize>,
    /// Open event streams to clients; default 10000.
    pub(super) max_streams: Option<NonZeroUsize>,
    /// A session without a request for this long is ended; default `30m`.
    pub(super) session_idle: Option<Span>,
    /// Memory for events that a lost client may still fetch, all sessions together; default `64MiB`.
    pub(super) event_log_bytes: Option<ByteSize>,
    /// How long such an event is kept; default `5m`.
    pub(super) event_log_ttl: Option<Span>,
    /// Child processes of all stdio backends together; default 256.
    pub(super) max_processes: Option<NonZeroUsize>,
    /// Calls in flight at a time; default 10000.
    pub(super) max_in_flight: Option<NonZeroUsize>,
    /// How long a client may take to answer what a backend asks; default `10m`.
    pub(super) answer_timeout: Option<Span>,
    /// How often one call may ask; default 16.
    pub(super) max_rounds: Option<NonZeroUsize>,
    /// Calls that wait for an answer at a time; default 10000.
    pub(super) max_parked_calls: Option<NonZeroUsize>,
    /// Requests of one caller in a minute, over all instances; no limit by default.
    pub(super) caller_requests_per_minute: Option<NonZeroU32>,
    /// How many of these may come at once; default all.
    pub(super) caller_burst: Option<NonZeroU32>,
    /// Requests with one token, at all endpoints together; no limit by default.
    pub(super) token: Option<Rate>,
    /// Requests at an endpoint, of all callers together, by its name; `/mcp` is the default one. No limit by default.
    pub(super) endpoints: Option<BTreeMap<String, Rate>>,
    /// Calls of tools; no limit by default.
    pub(super) tools: Option<Vec<ToolRate>>,
}

/// How often something may happen, over all instances.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rate {
    /// So often,
    pub(super) requests: NonZeroU32,
    /// in this time; default `1m`.
    pub(super) window: Option<Span>,
    /// How many of these may come at once; default all.
    pub(super) burst: Option<NonZeroU32>,
}

/// How often tools may be called, over all instances.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolRate {
    /// Which tools, as clients know them: a name, or a pattern in which `*` is any text. All of them count together.
    pub(super) name: String,
    /// So often,
    pub(super) requests: NonZeroU32,
    /// in this time; default `1m`.
    pub(super) window: Option<Span>,
    /// How many of these may come at once; default all.
    pub(super) burst: Option<NonZeroU32>,
    /// Whether all callers count together, or each alone; default `all`.
    pub(super) per: Option<Per>,
    /// At which endpoint; `/mcp` is the default one. At all of them together where absent.
    pub(super) endpoint: Option<String>,
}

/// Who counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Per {
    /// All callers.
    All,
    /// Each caller alone.
    Caller,
}

/// Event streams to clients.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Streams {
    /// Pause after which a silent stream gets a comment line; default `15s`.
    pub(super) keep_alive: Option<Span>,
    /// How long a client is told to wait before it reconnects; default `1s`.
    pub(super) retry: Option<Span>,
    /// A call that takes longer than this is answered as a stream; default `1s`.
    pub(super) sse_after: Option<Span>,
}

/// Clean shutdown.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    /// How long requests are still taken after the signal to stop, while `/readyz` says no already: what balancers need
    /// to see it; default `3s` with Redis, `0s` without.
    pub(super) delay: Option<Span>,
    /// How long calls in flight may go on after the signal to stop; default `30s`.
    pub(super) deadline: Option<Span>,
}

/// Connections to HTTP backends.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Outbound {
    /// PEM files with certificate authorities to trust besides those of the system.
    pub(super) ca_bundle: Option<Paths>,
    /// Proxy for `https` backends; by default `HTTPS_PROXY` and `NO_PROXY` are honoured.
    pub(super) proxy: Option<Proxy>,
    /// Networks that are not public and that URLs named by others may point into all the same, as CIDR.
    pub(super) allow_networks: Option<Vec<String>>,
}

/// One path or several.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a path or a list of paths")]
pub(super) enum Paths {
    /// One path.
    One(PathBuf),
    /// Several paths.
    Many(Vec<PathBuf>),
}

/// Proxy for backends.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected `none`, `environment` or `{ url: URL, no_proxy: [HOST] }`")]
pub(super) enum Proxy {
    /// A word in place of a URL.
    Word(ProxyWord),
    /// A proxy for all backends.
    At(ProxyAt),
}

/// A word in place of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ProxyWord {
    /// No proxy, whatever the environment says.
    None,
    /// As `HTTPS_PROXY` and `NO_PROXY` say; the default.
    Environment,
}

/// A proxy for all backends.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProxyAt {
    /// `http://` or `https://` URL of the proxy.
    pub(super) url: SecretSource,
    /// Hosts, domains and networks that are reached without the proxy.
    pub(super) no_proxy: Option<Vec<String>>,
}

/// One MCP server: reached over HTTP (`url`) or started as a process (`command`).
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend(
    "oneOf" = [{ "required": ["url"] }, { "required": ["command"] }],
    "dependentRequired" = {
        "transport": ["url"], "headers": ["url"], "auth": ["url"], "caller_headers": ["url"],
        "identity_jwt": ["url"], "client_certificate": ["url"], "ca_bundle": ["url"],
        "args": ["command"], "env": ["command"], "cwd": ["command"], "max_processes": ["command"],
        "idle_stop": ["command"], "max_queue": ["command"], "queue_timeout": ["command"],
        "start_timeout": ["command"], "stop_grace": ["command"],
    },
))]
pub(super) struct Backend {
    /// HTTP: the URL of the MCP endpoint.
    pub(super) url: Option<String>,
    /// HTTP: how the endpoint is spoken to; default `auto`, which tries.
    pub(super) transport: Option<Transport>,
    /// HTTP: headers sent with every request.
    pub(super) headers: Option<BTreeMap<String, SecretSource>>,
    /// HTTP: headers with what is known of the caller, for backends that are trusted with it: `{principal.sub}`,
    /// `{principal.email}`, `{principal.name}`, `{principal.groups}`, `{principal.client}`.
    pub(super) caller_headers: Option<BTreeMap<String, String>>,
    /// HTTP: whether the header `Drawbridge-Identity` has a signed token that says who the caller is; default false.
    pub(super) identity_jwt: Option<bool>,
    /// HTTP: what the gateway proves itself with, besides `headers`.
    pub(super) auth: Option<BackendAuth>,
    /// HTTP: what the gateway proves itself with in TLS, besides `auth`; with `https` alone.
    pub(super) client_certificate: Option<ClientCertificate>,
    /// HTTP: PEM files to trust for this backend, in place of `outbound.ca_bundle`.
    pub(super) ca_bundle: Option<Paths>,
    /// stdio: the program to start.
    pub(super) command: Option<String>,
    /// stdio: its arguments.
    #[schemars(with = "Option<Vec<Argument>>")]
    pub(super) args: Option<Vec<String>>,
    /// stdio: environment variables it gets besides the basic ones.
    pub(super) env: Option<BTreeMap<String, SecretSource>>,
    /// stdio: the directory it starts in.
    pub(super) cwd: Option<PathBuf>,
    /// stdio: processes of this backend at a time; default 32.
    pub(super) max_processes: Option<NonZeroUsize>,
    /// stdio: a process without a call for this long is stopped; default `10m`.
    pub(super) idle_stop: Option<Span>,
    /// stdio: calls that may wait for a process; default 64.
    pub(super) max_queue: Option<usize>,
    /// stdio: how long a call may wait for a process; default `30s`.
    pub(super) queue_timeout: Option<Span>,
    /// stdio: how long a process may take to answer its first request; default `30s`.
    pub(super) start_timeout: Option<Span>,
    /// stdio: how long a process may take to end before it is killed; default `5s`.
    pub(super) stop_grace: Option<Span>,
    /// Protocol generation; default `auto`, which asks.
    pub(super) era: Option<Era>,
    /// With whom a client shares its session at it, if it has sessions; default `client_session`.
    pub(super) session_scope: Option<SessionScope>,
    /// How long the answer to that question is kept; default `10m`.
    pub(super) era_ttl: Option<Span>,
    /// Total deadline of a call; default `1h`.
    pub(super) timeout: Option<Span>,
    /// Deadline for a connection; default `10s`.
    pub(super) connect_timeout: Option<Span>,
    /// Deadline for the first byte of an answer; default `15m`.
    pub(super) first_byte_timeout: Option<Span>,
    /// Longest silence within an answer; default `15m`.
    pub(super) idle_timeout: Option<Span>,
    /// How long a list of several backends waits for this one; default `5s`.
    pub(super) list_timeout: Option<Span>,
    /// Whether answers are kept for as long as the backend says; default true.
    pub(super) cache: Option<bool>,
    /// How long stateless clients, and the gateway for them, may keep lists for which the backend does not say it, a
    /// day at most; default `0s`.
    pub(super) list_ttl: Option<Span>,
    /// Tools that change nothing, so that `mcp:read` is enough to call them; `*` is any text.
    pub(super) read_tools: Option<Vec<String>>,
    /// Whether tools that say so of themselves (`readOnlyHint`) are believed; default false.
    pub(super) trust_annotations: Option<bool>,
    /// Hosts of the pages that it may have users open (URL elicitation), besides its own; `*` is any text.
    pub(super) elicitation_hosts: Option<Vec<String>>,
}

/// A certificate that the gateway shows to one backend.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientCertificate {
    /// The certificate in PEM, followed by those that lead to its authority.
    pub(super) certificate: SecretSource,
    /// Its private key in PEM, not encrypted.
    pub(super) key: SecretSource,
}

/// What the gateway proves itself to a backend with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackendAuth {
    /// Whose credential it is, and how it is got.
    pub(super) kind: BackendAuthKind,
    /// `header`, `user_secret`: the name of the header; default `Authorization`.
    pub(super) header: Option<String>,
    /// `user_secret`: what stands before the key in the header; default `Bearer` in `Authorization`, else nothing.
    pub(super) scheme: Option<String>,
    /// `user_secret`: the page at which users get a key.
    pub(super) help: Option<String>,
    /// `header`: its value, in full.
    pub(super) value: Option<SecretSource>,
    /// `basic`: the user.
    pub(super) user: Option<String>,
    /// `basic`: the password.
    pub(super) password: Option<SecretSource>,
    /// OAuth: the authorization server, exactly as in its metadata.
    pub(super) issuer: Option<String>,
    /// `client_credentials`, `token_exchange`: where tokens are, in place of `issuer`.
    pub(super) token_endpoint: Option<String>,
    /// OAuth: the gateway's id there.
    pub(super) client_id: Option<String>,
    /// OAuth: the gateway's secret there.
    pub(super) client_secret: Option<SecretSource>,
    /// `client_credentials`, `token_exchange`, `id_jag`: how the secret is shown; default as the server's metadata say.
    pub(super) client_auth: Option<ClientAuth>,
    /// OAuth: what is asked for.
    pub(super) scopes: Option<Vec<String>>,
    /// `token_exchange`: whom the token is for, by the name that the server has for it.
    pub(super) audience: Option<String>,
    /// `token_exchange`: which token of a user's login is exchanged; default `access_token`.
    pub(super) subject_token: Option<SubjectToken>,
    /// OAuth: what the token is for (RFC 8707); default the backend's `url`. Empty where the server does not know that.
    pub(super) resource: Option<String>,
}

/// Whose credential a backend gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum BackendAuthKind {
    /// A header with a value of the operator's.
    Header,
    /// HTTP Basic with a user and password of the operator's.
    Basic,
    /// An access token that the gateway gets in its own name.
    ClientCredentials,
    /// An access token for each user, that is got with what they have logged in with (RFC 8693).
    TokenExchange,
    /// An access token for each user, for which the identity provider vouches to the backend's own server (ID-JAG).
    IdJag,
    /// An access token of each user's own: they connect their accounts in a browser.
    #[serde(rename = "user_oauth")]
    UserOAuth,
    /// A key of each user's own, which they give in a browser.
    UserSecret,
}

/// A token that an identity provider gives when a user logs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubjectToken {
    /// The access token.
    #[default]
    AccessToken,
    /// The ID token.
    IdToken,
}

/// How a client shows its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// By HTTP Basic.
    Basic,
    /// In the form.
    Post,
}

/// An argument as it may be written.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes the written form to the schema; the loader reads the text")]
pub(super) enum Argument {
    /// Text.
    Text(String),
    /// A number, passed on as it is written.
    Number(f64),
    /// A truth value, passed on as it is written.
    Bool(bool),
}

/// How an HTTP backend is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Streamable HTTP is tried first, then HTTP+SSE.
    #[default]
    Auto,
    /// Streamable HTTP.
    StreamableHttp,
    /// HTTP+SSE of protocol revision 2024-11-05.
    Sse,
}

/// Protocol generation of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// Found out by asking the backend.
    #[default]
    Auto,
    /// Handshake and sessions: revisions 2024-11-05 to 2025-11-25.
    Legacy,
    /// Metadata in each request: revision 2026-07-28.
    Modern,
}

/// With whom a client shares its session at a backend that has sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionScope {
    /// With nobody; stateless clients share one per principal.
    #[default]
    ClientSession,
    /// With all clients of the same principal, version and capabilities.
    Principal,
    /// With all clients of the same version and capabilities.
    Shared,
    /// There is one for each call.
    None,
}

/// A path `/mcp/{name}` in front of chosen backends.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    /// The backends behind it, in the order of their lists.
    #[schemars(length(min = 1))]
    pub(super) backends: Vec<String>,
    /// Which tools it has, as clients know them; default all.
    pub(super) tools: Option<Patterns>,
    /// Which prompts.
    pub(super) prompts: Option<Patterns>,
    /// Which resources, by their URIs.
    pub(super) resources: Option<Patterns>,
}
