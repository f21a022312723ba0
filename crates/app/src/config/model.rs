//! The configuration after all checks: plain values with defaults filled in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drawbridge_auth::policy::Rule;
use drawbridge_core::glob::Glob;
use drawbridge_core::rights::Selection;
use drawbridge_redis::{EventLimits, RedisOptions, ServerUrl};
use ipnet::IpNet;
use url::Url;

use super::raw::{
    AuthMode, ClientAuth, ClientGrant, Era, LogFormat, OtlpProtocol, RegistrationPolicy, SessionScope,
    StepUp, SubjectToken, Transport,
};
use super::secret::{self, SealKey, Secret};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A checked configuration. `Config::default()` is what an empty file gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of this instance; `None` lets the process make one up.
    pub instance_id: Option<String>,
    /// The listener for MCP clients.
    pub public: Public,
    /// The listener for operators.
    pub admin: Admin,
    /// Shared state in Redis; `None` for state in memory.
    pub redis: Option<Redis>,
    /// Where durable records are; `None`: SQLite in `data_dir`, if any are needed.
    pub database: Option<Secret>,
    /// The audit trail.
    pub audit: Audit,
    /// Directory for what the gateway itself keeps.
    pub data_dir: PathBuf,
    /// Seal keys: the first seals, all open. Empty: one is made and kept in `data_dir`.
    pub seal_keys: Vec<SealKey>,
    /// Who may call.
    pub auth: Auth,
    /// OAuth clients that the operator names.
    pub clients: Vec<NamedClient>,
    /// What is logged and how.
    pub log: Log,
    /// Where traces go; `None`: nothing is traced.
    pub otlp: Option<Otlp>,
    /// Upper bounds.
    pub limits: Limits,
    /// Event streams to clients.
    pub streams: Streams,
    /// Clean shutdown.
    pub drain: Drain,
    /// Connections to HTTP backends.
    pub outbound: Outbound,
    /// The MCP servers behind the gateway, by name.
    pub backends: BTreeMap<String, Backend>,
    /// Named endpoints, by name.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// Who may what; `None`: everybody everything that their scopes allow.
    pub policies: Option<Vec<Rule>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            instance_id: None,
            public: Public::default(),
            admin: Admin::default(),
            redis: None,
            database: None,
            audit: Audit::default(),
            data_dir: PathBuf::from("./data"),
            seal_keys: Vec::new(),
            auth: Auth::default(),
            clients: Vec::new(),
            log: Log::default(),
            otlp: None,
            limits: Limits::default(),
            streams: Streams::default(),
            drain: Drain::default(),
            outbound: Outbound::default(),
            backends: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            policies: None,
        }
    }
}

/// The audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Whether calls are noted.
    pub calls: bool,
    /// How long entries are kept; `None`: for ever.
    pub retention: Option<Duration>,
    /// Whether it is noted what was said in calls.
    pub payloads: bool,
    /// What is taken out of that; known to be rules.
    pub redact: Vec<String>,
    /// Of a part that is larger only the size is noted.
    pub max_payload_bytes: usize,
    /// How many calls may wait to be written.
    pub queue: usize,
    /// How often there is a signed checkpoint; never 0.
    pub checkpoint_interval: Duration,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            calls: true,
            retention: Some(Duration::from_secs(90 * 24 * 3600)),
            payloads: false,
            redact: Vec::new(),
            max_payload_bytes: 16 * KIB,
            queue: 10_000,
            checkpoint_interval: Duration::from_secs(60),
        }
    }
}

/// The listener for MCP clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The URL under which clients reach the gateway: scheme, host and port only.
    pub url: Option<Url>,
    /// Origins whose pages may call, in their serialized form (`https://app.example.com`).
    pub allowed_origins: Vec<String>,
    /// Hosts (with or without port, lower case) accepted besides the obvious ones.
    pub allowed_hosts: Vec<String>,
    /// Networks of balancers whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
}

impl Default for Public {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            url: None,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
        }
    }
}

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// A further address for `/healthz`, `/readyz` and `/metrics` alone.
    pub probes: Option<SocketAddr>,
    /// The first token of the admin API.
    pub bootstrap_token: Option<Secret>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)), probes: None, bootstrap_token: None }
    }
}

/// Shared state in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redis {
    /// Where it is.
    pub url: ServerUrl,
    /// User in place of the URL's.
    pub user: Option<String>,
    /// Password in place of the URL's.
    pub password: Option<Password>,
    /// PEM files with certificate authorities to trust besides those of the system.
    pub ca_bundle: Vec<PathBuf>,
    /// What all keys begin with.
    pub prefix: String,
    /// Deadline for a connection and for each command.
    pub timeout: Duration,
}

/// A password that may change while the gateway runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// It does not.
    Fixed(Secret),
    /// It is what the file says when it is needed.
    File(PathBuf),
}

impl Redis {
    /// The Redis at a URL, with the defaults.
    pub fn new(url: ServerUrl) -> Self {
        let (prefix, timeout) = (RedisOptions::PREFIX.to_owned(), RedisOptions::TIMEOUT);
        Self { url, user: None, password: None, ca_bundle: Vec::new(), prefix, timeout }
    }

    /// What to connect with. Events are kept for as long as `limits` say.
    ///
    /// # Errors
    ///
    /// If the prefix is none, which a checked configuration has not.
    pub fn options(&self, limits: &Limits) -> Result<RedisOptions, drawbridge_redis::Error> {
        let events = EventLimits { ttl: limits.event_log_ttl, ..EventLimits::default() };
        let mut options = RedisOptions::new(self.url.clone())
            .ca_bundles(self.ca_bundle.clone())
            .timeout(self.timeout)
            .events(events)
            .prefix(self.prefix.clone())?;
        if let Some(user) = &self.user {
            options = options.username(user);
        }
        if let Some(password) = self.password.clone() {
            options = options.password(Arc::new(move || password.read()));
        }
        Ok(options)
    }
}

impl Password {
    fn read(&self) -> Result<String, String> {
        match self {
            Self::Fixed(secret) => Ok(secret.expose().to_owned()),
            Self::File(file) => secret::read(file).map_err(|error| format!("{}: {error}", file.display())),
        }
    }
}

/// Who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// How callers prove who they are.
    pub mode: AuthMode,
    /// What people call this gateway when they log in.
    pub name: String,
    /// How long an access token is good for.
    pub access_token_ttl: Duration,
    /// How long a login is good for that is not used.
    pub refresh_idle_ttl: Duration,
    /// How long a login is good for, however often it is used.
    pub refresh_absolute_ttl: Duration,
    /// For how long a refresh token that was used is answered as it was then.
    pub refresh_grace: Duration,
    /// Who may register OAuth clients.
    pub registration: RegistrationPolicy,
    /// Whose documents about clients are accepted.
    pub client_documents: RegistrationPolicy,
    /// Hosts whose documents are accepted besides those of known ones.
    pub client_document_hosts: Vec<String>,
    /// Redirect URIs that are accepted besides those of known hosts.
    pub redirect_uris: Vec<String>,
    /// The identity provider that users log in with.
    pub login: Option<Login>,
    /// Whether users make personal tokens of their own.
    pub own_tokens: bool,
    /// Whose assertions about their users are taken.
    pub id_jag: Vec<IdJagIssuer>,
    /// Who may ask about tokens: ids and secrets.
    pub introspection_clients: Vec<(String, Secret)>,
    /// What is done about a tool for which a caller lacks a scope.
    pub step_up: StepUp,
    /// Whose tokens are accepted in the mode `external`.
    pub external: Vec<External>,
}

/// An OAuth client that the operator names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedClient {
    /// Its `client_id`.
    pub id: String,
    /// What people read.
    pub name: Option<String>,
    /// What it proves with who it is.
    pub proof: ClientProof,
    /// How it gets tokens.
    pub grants: BTreeSet<ClientGrant>,
    /// What it may be allowed at most.
    pub scopes: Vec<String>,
    /// Where it may be answered.
    pub redirect_uris: Vec<String>,
}

/// What a client proves with who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientProof {
    /// A secret.
    Secret(Secret),
    /// Keys of its own, as the text of a JWK Set.
    Keys(Secret),
}

/// An identity provider whose assertions are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdJagIssuer {
    /// Exactly as in its assertions and metadata.
    pub issuer: String,
    /// Where its keys are, if not where its metadata say.
    pub jwks_uri: Option<String>,
}

/// An issuer of JSON Web Tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Exactly as in its tokens and metadata.
    pub issuer: String,
    /// Audiences that are accepted besides the URL of the endpoint.
    pub audiences: Vec<String>,
    /// Algorithms that are accepted, as JOSE names them.
    pub algorithms: Vec<String>,
    /// What the header `typ` may be, in lower case.
    pub types: Vec<String>,
    /// Where its keys are, if not where its metadata say.
    pub jwks_uri: Option<String>,
    /// Ids of clients for which it issues ID tokens.
    pub client_ids: Vec<String>,
    /// For how long a token of it may be good at most.
    pub max_lifetime: Duration,
    /// The claim with the groups of a subject.
    pub groups_claim: String,
    /// How to ask it about tokens that are no JSON Web Tokens.
    pub introspection: Option<Introspection>,
}

/// How an issuer is asked about tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introspection {
    /// Its introspection endpoint.
    pub url: String,
    /// The gateway's id there.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Secret,
}

impl Default for Auth {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self {
            mode: AuthMode::None,
            name: "Drawbridge".to_owned(),
            access_token_ttl: Duration::from_secs(3600),
            refresh_idle_ttl: day * 30,
            refresh_absolute_ttl: day * 180,
            refresh_grace: Duration::from_secs(120),
            registration: RegistrationPolicy::Curated,
            client_documents: RegistrationPolicy::Curated,
            client_document_hosts: Vec::new(),
            redirect_uris: Vec::new(),
            login: None,
            own_tokens: false,
            id_jag: Vec::new(),
            introspection_clients: Vec::new(),
            step_up: StepUp::default(),
            external: Vec::new(),
        }
    }
}

/// The identity provider that users log in with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Its issuer, exactly.
    pub issuer: String,
    /// The gateway's id there.
    pub client_id: String,
    /// The gateway's secret there.
    pub client_secret: Option<Secret>,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// The claim that has a user's groups.
    pub groups_claim: String,
    /// Groups of which a user must have one; empty for all users.
    pub allowed_groups: Vec<String>,
}

/// What is logged and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Text or JSON.
    pub format: LogFormat,
    /// A filter in the syntax of `tracing_subscriber::EnvFilter`, known to parse.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// A collector of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// Its URL.
    pub endpoint: Url,
    /// How it is spoken to.
    pub protocol: OtlpProtocol,
    /// Headers for it.
    pub headers: BTreeMap<String, Secret>,
    /// Share of the traces that begin here which is recorded, 0 to 1.
    pub sample: f64,
    /// What the gateway is called in traces.
    pub service_name: String,
}

/// Upper bounds; sizes in bytes, none of them 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Body of a client request.
    pub max_body_bytes: usize,
    /// Header section of a client request.
    pub max_header_bytes: usize,
    /// JSON answer of a backend.
    pub max_result_bytes: usize,
    /// One server-sent event of a backend.
    pub max_event_bytes: usize,
    /// One line of output of a stdio backend.
    pub max_line_bytes: usize,
    /// Connections of clients at a time.
    pub max_connections: usize,
    /// Client sessions at a time.
    pub max_sessions: usize,
    /// Open event streams to clients.
    pub max_streams: usize,
    /// A session without a request for this long is ended.
    pub session_idle: Duration,
    /// Memory for events that a lost client may still fetch, all sessions together.
    pub event_log_bytes: usize,
    /// How long such an event is kept.
    pub event_log_ttl: Duration,
    /// Child processes of all stdio backends together.
    pub max_processes: usize,
    /// Calls in flight at a time.
    pub max_in_flight: usize,
    /// How long a client may take to answer what a backend asks.
    pub answer_timeout: Duration,
    /// How often one call may ask.
    pub max_rounds: usize,
    /// Calls that wait for an answer at a time.
    pub max_parked_calls: usize,
    /// Requests of one caller in a minute, over all instances; `None`: any number.
    pub caller_requests_per_minute: Option<NonZeroU32>,
    /// How many of these may come at once; `None`: all of them.
    pub caller_burst: Option<NonZeroU32>,
    /// Requests with one token.
    pub token: Option<Rate>,
    /// Requests at endpoints, by the names that people know them by, each known.
    pub endpoints: BTreeMap<String, Rate>,
    /// Calls of tools.
    pub tools: Vec<ToolRate>,
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So often,
    pub requests: NonZeroU32,
    /// in this time, which is not 0.
    pub window: Duration,
    /// How many of these may come at once; `None`: all of them.
    pub burst: Option<NonZeroU32>,
}

/// How often tools may be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolRate {
    /// Which.
    pub name: Glob,
    /// How often.
    pub rate: Rate,
    /// Whether each caller counts alone.
    pub is_per_caller: bool,
    /// At which endpoint, by the name that people know it by; known.
    pub endpoint: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 4 * MIB,
            max_header_bytes: 64 * KIB,
            max_result_bytes: 16 * MIB,
            max_event_bytes: 16 * MIB,
            max_line_bytes: 16 * MIB,
            max_connections: 20_000,
            max_sessions: 100_000,
            max_streams: 10_000,
            session_idle: Duration::from_secs(30 * 60),
            event_log_bytes: 64 * MIB,
            event_log_ttl: Duration::from_secs(5 * 60),
            max_processes: 256,
            max_in_flight: 10_000,
            answer_timeout: Duration::from_secs(10 * 60),
            max_rounds: 16,
            max_parked_calls: 10_000,
            caller_requests_per_minute: None,
            caller_burst: None,
            token: None,
            endpoints: BTreeMap::new(),
            tools: Vec::new(),
        }
    }
}

/// Event streams to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Pause after which a silent stream gets a comment line; never 0.
    pub keep_alive: Duration,
    /// How long a client is told to wait before it reconnects.
    pub retry: Duration,
    /// A call that takes longer than this is answered as a stream.
    pub sse_after: Duration,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(15),
            retry: Duration::from_secs(1),
            sse_after: Duration::from_secs(1),
        }
    }
}

/// Clean shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long requests are still taken after the signal to stop, while the gateway says that it is not ready.
    pub delay: Duration,
    /// How long calls in flight may go on after the signal to stop.
    pub deadline: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: Duration::ZERO, deadline: Duration::from_secs(30) }
    }
}

/// Connections to HTTP backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbound {
    /// PEM files with certificate authorities to trust besides those of the system.
    pub ca_bundle: Vec<PathBuf>,
    /// The proxy to use, already read from the file or the environment; `None` connects directly.
    pub proxy: Option<Proxy>,
    /// Networks that are not public and that URLs named by others may point into, each a valid CIDR.
    pub allow_networks: Vec<String>,
}

/// A proxy for backends. URLs are secrets, since they may hold a password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// Proxy for `https://` backends.
    pub https: Option<Secret>,
    /// Proxy for `http://` backends.
    pub http: Option<Secret>,
    /// Hosts reached without a proxy, in the syntax of `NO_PROXY`; may be empty.
    pub no_proxy: String,
}

/// One MCP server behind the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// How it is reached.
    pub kind: BackendKind,
    /// Protocol generation.
    pub era: Era,
    /// With whom its sessions are shared.
    pub session_scope: SessionScope,
    /// How long a probed generation is trusted.
    pub era_ttl: Duration,
    /// Total deadline of a call.
    pub timeout: Duration,
    /// Deadline for a connection; of use to HTTP only.
    pub connect_timeout: Duration,
    /// Deadline for the first byte of an answer.
    pub first_byte_timeout: Duration,
    /// Longest silence within an answer.
    pub idle_timeout: Duration,
    /// How long an aggregated list waits for this backend.
    pub list_timeout: Duration,
    /// Whether answers are kept for as long as it says.
    pub cache: bool,
    /// How long lists may be kept where it does not say; 0: not at all.
    pub list_ttl: Duration,
    /// Tools that change nothing.
    pub read_tools: Vec<Glob>,
    /// Whether tools that say so of themselves are believed.
    pub trust_annotations: bool,
    /// Hosts of the pages that it may have users open, besides its own.
    pub elicitation_hosts: Vec<Glob>,
}

impl Backend {
    /// Whether each user has an account of their own there.
    pub fn is_personal(&self) -> bool {
        let BackendKind::Http(http) = &self.kind else { return false };
        matches!(
            http.auth,
            Some(
                BackendAuth::UserOAuth(_)
                    | BackendAuth::TokenExchange(_)
                    | BackendAuth::IdJag(_)
                    | BackendAuth::UserSecret(_)
            )
        )
    }

    /// Whether it is told who calls.
    pub fn is_told_of_callers(&self) -> bool {
        let BackendKind::Http(http) = &self.kind else { return false };
        http.identity_jwt || !http.caller_headers.is_empty()
    }

    /// A backend of a kind with the default deadlines.
    pub fn new(kind: BackendKind) -> Self {
        Self {
            kind,
            era: Era::Auto,
            session_scope: SessionScope::default(),
            era_ttl: Duration::from_secs(10 * 60),
            timeout: Duration::from_secs(60 * 60),
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(15 * 60),
            idle_timeout: Duration::from_secs(15 * 60),
            list_timeout: Duration::from_secs(5),
            cache: true,
            list_ttl: Duration::ZERO,
            read_tools: Vec::new(),
            trust_annotations: false,
            elicitation_hosts: Vec::new(),
        }
    }
}

/// How a backend is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Over HTTP.
    Http(HttpBackend),
    /// As a child process.
    Stdio(StdioBackend),
}

/// A backend reached over HTTP.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpBackend {
    /// The MCP endpoint: `http` or `https`, without user or password.
    pub url: Url,
    /// How it is spoken to.
    pub transport: Transport,
    /// Headers sent with every request; names in lower case, known to be valid.
    pub headers: BTreeMap<String, Secret>,
    /// Headers with places that the caller fills; names in lower case, both known to be valid.
    pub caller_headers: BTreeMap<String, String>,
    /// Whether a signed token says who the caller is.
    pub identity_jwt: bool,
    /// What the gateway proves itself with, besides.
    pub auth: Option<BackendAuth>,
    /// What it proves itself with in TLS.
    pub client_certificate: Option<Box<ClientCertificate>>,
    /// PEM files to trust for this backend; empty: those of `Outbound`.
    pub ca_bundle: Vec<PathBuf>,
}

/// A certificate that the gateway shows, and its key, both in PEM and known to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, followed by those that lead to its authority.
    pub certificate: Secret,
    /// Its key.
    pub key: Secret,
}

/// What the gateway proves itself to a backend with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAuth {
    /// A header; its name is in lower case and known to be valid.
    Header {
        /// Its name.
        name: String,
        /// Its value.
        value: Secret,
    },
    /// HTTP Basic.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// An access token of the gateway's own.
    ClientCredentials(ClientCredentials),
    /// An access token of each user's own.
    UserOAuth(UserOAuth),
    /// An access token for each user, got with their login.
    TokenExchange(TokenExchange),
    /// An access token for each user, for which the identity provider vouches to the backend's own server.
    IdJag(IdJag),
    /// A key of each user's own.
    UserSecret(UserSecret),
}

/// How keys of users are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSecret {
    /// The header; its name is in lower case and known to be valid.
    pub header: String,
    /// What stands before the key there.
    pub scheme: Option<String>,
    /// Where users get a key.
    pub help: Option<String>,
}

/// How the gateway exchanges what users have logged in with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenExchange {
    /// Where; `None`: at the identity provider that users log in with.
    pub from: Option<TokenSource>,
    /// The gateway's id and secret there; `None`: those at that provider.
    pub client: Option<(String, Option<Secret>)>,
    /// How the secret is shown; `None`: as the server's metadata say.
    pub client_auth: Option<ClientAuth>,
    /// Which token is exchanged.
    pub subject_token: SubjectToken,
    /// Whom the new one is for, by a name.
    pub audience: Option<String>,
    /// Whom it is for, by a URL.
    pub resource: Option<String>,
    /// What is asked for.
    pub scopes: Vec<String>,
}

/// How a backend's own server is shown what the identity provider says of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdJag {
    /// That server, exactly as in its metadata.
    pub issuer: String,
    /// The gateway's id there.
    pub client_id: String,
    /// Its secret there.
    pub client_secret: Option<Secret>,
    /// How it is shown; `None`: as the server's metadata say.
    pub client_auth: Option<ClientAuth>,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// What the token is for, if that is said.
    pub resource: Option<String>,
}

/// How users connect their accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserOAuth {
    /// The authorization server, if the backend is not to say which it is.
    pub issuer: Option<String>,
    /// The gateway's id there, if it is not to register by itself.
    pub client_id: Option<String>,
    /// Its secret there.
    pub client_secret: Option<Secret>,
    /// What is asked for; empty for what the backend says that it needs.
    pub scopes: Vec<String>,
    /// What tokens are for, in place of what the backend says.
    pub resource: Option<String>,
}

/// How the gateway gets an access token in its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCredentials {
    /// Where tokens are.
    pub from: TokenSource,
    /// The gateway's id there.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Secret,
    /// How it is shown; `None`: as the server's metadata say.
    pub client_auth: Option<ClientAuth>,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// What the token is for, if that is said.
    pub resource: Option<String>,
}

/// Where tokens are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// At this URL.
    Endpoint(String),
    /// Where this server's metadata say.
    Issuer(String),
    /// Where the server says that the backend names.
    Backend,
}

impl HttpBackend {
    /// A backend at a URL with default settings.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            transport: Transport::Auto,
            headers: BTreeMap::new(),
            caller_headers: BTreeMap::new(),
            identity_jwt: false,
            auth: None,
            client_certificate: None,
            ca_bundle: Vec::new(),
        }
    }
}

impl fmt::Debug for HttpBackend {
    /// Shows the URL without its query, which may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        url.set_query(self.url.query().map(|_| "redacted"));
        f.debug_struct("HttpBackend")
            .field("url", &url.as_str())
            .field("transport", &self.transport)
            .field("headers", &self.headers)
            .field("caller_headers", &self.caller_headers)
            .field("identity_jwt", &self.identity_jwt)
            .field("auth", &self.auth)
            .field("client_certificate", &self.client_certificate)
            .field("ca_bundle", &self.ca_bundle)
            .finish()
    }
}

/// A backend started as a child process.
#[derive(Clone, PartialEq, Eq)]
pub struct StdioBackend {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables it gets besides the basic ones.
    pub env: BTreeMap<String, Secret>,
    /// The directory it starts in; `None`: that of the gateway.
    pub cwd: Option<PathBuf>,
    /// Processes at a time; at least 1.
    pub max_processes: usize,
    /// A process without a call for this long is stopped.
    pub idle_stop: Duration,
    /// Calls that may wait for a process.
    pub max_queue: usize,
    /// How long a call may wait for a process.
    pub queue_timeout: Duration,
    /// How long a process may take to answer its first request.
    pub start_timeout: Duration,
    /// How long a process may take to end before it is killed.
    pub stop_grace: Duration,
}

impl StdioBackend {
    /// A backend that runs a program with default settings.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            max_processes: 32,
            idle_stop: Duration::from_secs(10 * 60),
            max_queue: 64,
            queue_timeout: Duration::from_secs(30),
            start_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
        }
    }
}

impl fmt::Debug for StdioBackend {
    /// Shows how many arguments there are, since one of them may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioBackend")
            .field("command", &self.command)
            .field("args", &format_args!("[{} redacted]", self.args.len()))
            .field("env", &self.env)
            .field("cwd", &self.cwd)
            .field("max_processes", &self.max_processes)
            .field("idle_stop", &self.idle_stop)
            .field("max_queue", &self.max_queue)
            .field("queue_timeout", &self.queue_timeout)
            .field("start_timeout", &self.start_timeout)
            .field("stop_grace", &self.stop_grace)
            .finish()
    }
}

/// A path `/mcp/{name}` in front of chosen backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Names of its backends, each known, none twice, at least one.
    pub backends: Vec<String>,
    /// What it has of what they have.
    pub selection: Selection,
}
