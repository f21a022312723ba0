//! From the checked configuration to backends, endpoints and the public face.

pub(crate) mod exchange;
mod proof;

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::Router;
use drawbridge_auth::named_clients::NamedClients;
use drawbridge_auth::policy::{Rules, StepUp};
use drawbridge_core::accounts::Accounts;
use drawbridge_core::audit::CallAudit;
use drawbridge_core::event_log::EventRing;
use drawbridge_core::fleet::Peers;
use drawbridge_core::glob::Glob;
use drawbridge_core::metrics::{Ends, Gauges, Metrics};
use drawbridge_core::seal::KeyRing;
use drawbridge_core::state::{Quota, SharedState, WithFallback};
use drawbridge_core::trace::Tracer;
use drawbridge_core::{Backend, BackendName, RoundOptions, Rounds, Tasks, Trust};
use drawbridge_credentials::authority::{Pins, Site};
use drawbridge_credentials::caller::Callers;
use drawbridge_credentials::connections::{Connections, KeySite};
use drawbridge_front::gate::Gate;
use drawbridge_front::limits::{Limits, ToolLimit};
use drawbridge_front::options::FrontOptions;
use drawbridge_front::{Front, Parts};
use drawbridge_upstream::http::Target;
use drawbridge_upstream::process::{GuardCommand, Spec};
use drawbridge_upstream::stdio::{ProcessCap, ProcessOptions};
use drawbridge_upstream::{
    ClientCertificate, EraChoice, GuardOptions, HttpBackend, Options, Outbound, OutboundOptions, Proxy,
    SessionScope, StdioBackend, TransportChoice,
};
use parking_lot::Mutex;

use self::proof::server_fetcher;
use crate::access::EndpointNames;
use crate::config::{self, AuthMode, BackendAuth, BackendKind, Config, Era, Rate, ToolRate, Transport};
use crate::live::Current;
use crate::open_files::OpenFiles;

/// The parts of a gateway.
pub struct Wired {
    /// The public face.
    pub front: Front,
    /// To be swept now and then.
    pub events: Arc<EventRing>,
    /// The other instances.
    pub peers: Peers,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    pub(crate) audit: Option<Arc<dyn CallAudit>>,
    pub(crate) keys: Arc<KeyRing>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) means: Means,
    pub(crate) work: Work,
    /// The endpoints that there are.
    pub(crate) names: EndpointNames,
    /// What the configuration has made of them.
    pub(crate) current: Mutex<Current>,
}

impl Wired {
    /// What is open and under way.
    pub fn gauges(&self) -> Gauges {
        let audit_queue = self.audit.as_ref().map_or(0, |audit| audit.waiting());
        Gauges { event_log_bytes: self.events.size().1, audit_queue, ..self.front.gauges() }
    }
}

/// Background work, apart for what must end first.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Connections and calls of clients.
    pub clients: Tasks,
    /// What goes on at backends.
    pub backends: Tasks,
    /// What goes on between instances, and with what they share.
    pub fleet: Tasks,
}

/// Where is kept what happens.
pub struct Records {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Who records traces, if somebody does.
    pub tracer: Option<Tracer>,
    /// Who notes calls, if somebody does.
    pub audit: Option<Arc<dyn CallAudit>>,
}

/// What stands before MCP.
pub struct Doors {
    /// Seals what clients carry.
    pub keys: Arc<KeyRing>,
    /// Asks callers who they are.
    pub gate: Option<Gate>,
    /// Answers what is no MCP.
    pub others: Option<Router>,
    /// Is told which endpoints there are.
    pub names: EndpointNames,
    /// What users have at other servers.
    pub connections: Option<Arc<Connections>>,
    /// Is told which OAuth clients the configuration names.
    pub clients: Option<Arc<NamedClients>>,
    /// Where the authorization servers of backends are pinned.
    pub pins: Option<Pins>,
    /// What is known of callers.
    pub callers: Option<Arc<Callers>>,
}

/// Makes all parts. `guard` starts stdio backends, `workers` is the number of runtimes.
///
/// # Errors
///
/// If a part can't be made, such as a certificate file that is unreadable.
pub fn wire(
    config: &Config,
    state: SharedState,
    records: Records,
    doors: Doors,
    guard: &GuardCommand,
    workers: usize,
    work: &Work,
) -> anyhow::Result<Wired> {
    let Records { metrics, tracer, audit } = records;
    let keys = doors.keys;
    let limiter = WithFallback::new(state.limiter.clone());
    let peers = Peers::new(state, work.fleet.clone());
    let means = Means {
        guard: guard.clone(),
        cap: ProcessCap::new(config.limits.max_processes),
        workers,
        tasks: work.backends.clone(),
        metrics: metrics.clone(),
        peers: peers.clone(),
        keys: keys.clone(),
        connections: doors.connections,
        clients: doors.clients,
        pins: doors.pins,
        callers: doors.callers,
    };
    // What a parked call still has to say goes to a backend, so it ends with the work there.
    let rounds = Rounds::new(keys.clone(), round_options(config), peers.clone(), work.backends.clone());
    let events = Arc::new(EventRing::new(config.limits.event_log_bytes, config.limits.event_log_ttl));
    let front = Front::new(Parts {
        options: front_options(config),
        endpoints: Vec::new(),
        keys: keys.clone(),
        rounds: rounds.clone(),
        events: events.clone(),
        tasks: work.clients.clone(),
        peers: peers.clone(),
        metrics: metrics.clone(),
        tracer,
        gate: doors.gate,
        limiter,
        others: doors.others,
    });
    let current = Mutex::new(Current::before(config));
    let work = work.clone();
    let names = doors.names;
    let wired = Wired { front, events, peers, metrics, audit, keys, rounds, means, work, names, current };
    wired.apply(config)?;
    wired.peers.run();
    Ok(wired)
}

pub(crate) fn round_options(config: &Config) -> RoundOptions {
    RoundOptions {
        answer_timeout: config.limits.answer_timeout,
        max_rounds: config.limits.max_rounds,
        max_parked: config.limits.max_parked_calls,
    }
}

pub(crate) fn front_options(config: &Config) -> FrontOptions {
    let enough_for = OpenFiles::now().connections();
    FrontOptions {
        max_body_bytes: config.limits.max_body_bytes,
        max_header_bytes: config.limits.max_header_bytes,
        max_connections: config.limits.max_connections.min(enough_for),
        max_in_flight: config.limits.max_in_flight,
        max_open: enough_for,
        max_sessions: config.limits.max_sessions,
        max_streams: config.limits.max_streams,
        session_idle: config.limits.session_idle,
        keep_alive: config.streams.keep_alive,
        retry: config.streams.retry,
        sse_after: config.streams.sse_after,
        allowed_origins: config.public.allowed_origins.clone(),
        allowed_hosts: config.public.allowed_hosts.clone(),
        public_url: config.public.url.clone(),
        on_loopback: config.public.listen.ip().is_loopback(),
        loopback_origins: config.auth.mode != AuthMode::None,
        limits: Arc::new(limits(&config.limits)),
        rules: Arc::new(rules(config)),
        trusted_proxies: config.public.trusted_proxies.clone(),
    }
}

fn rules(config: &Config) -> Rules {
    let step_up = match config.auth.step_up {
        config::StepUp::Hide => StepUp::Hide,
        config::StepUp::Challenge => StepUp::Challenge,
    };
    Rules { rules: config.policies.clone(), step_up }
}

/// What the operator says about a backend.
pub(crate) fn trust(config: &Config, backend: &config::Backend) -> Trust {
    let own = match &backend.kind {
        BackendKind::Http(http) => http.url.host_str().map(|host| host.trim_matches(['[', ']'])),
        BackendKind::Stdio(_) => None,
    };
    Trust {
        read_tools: backend.read_tools.clone(),
        annotations: backend.trust_annotations,
        knows_callers: config.auth.mode == AuthMode::None || backend.is_personal(),
        hosts: own
            .and_then(Glob::parse)
            .into_iter()
            .chain(backend.elicitation_hosts.iter().cloned())
            .collect(),
    }
}

fn limits(limits: &config::Limits) -> Limits {
    let window = Duration::from_secs(60);
    let per_minute = limits.caller_requests_per_minute.map(|requests| Rate {
        requests,
        window,
        burst: limits.caller_burst,
    });
    let tool = |tool: &ToolRate| ToolLimit {
        name: tool.name.clone(),
        endpoint: tool.endpoint.clone(),
        is_per_caller: tool.is_per_caller,
        quota: quota(tool.rate),
    };
    Limits {
        caller: per_minute.map(quota),
        token: limits.token.map(quota),
        endpoints: limits.endpoints.iter().map(|(name, rate)| (name.clone(), quota(*rate))).collect(),
        tools: limits.tools.iter().map(tool).collect(),
    }
}

fn quota(rate: Rate) -> Quota {
    let burst = rate.burst.unwrap_or(rate.requests).get();
    Quota { interval: rate.window / rate.requests.get(), burst }
}

/// What backends are made with, beside what the configuration says.
pub(crate) struct Means {
    guard: GuardCommand,
    pub(crate) cap: ProcessCap,
    workers: usize,
    tasks: Tasks,
    metrics: Arc<Metrics>,
    peers: Peers,
    keys: Arc<KeyRing>,
    pub(crate) connections: Option<Arc<Connections>>,
    pub(crate) clients: Option<Arc<NamedClients>>,
    pins: Option<Pins>,
    callers: Option<Arc<Callers>>,
}

impl Means {
    fn connections(&self) -> anyhow::Result<&Arc<Connections>> {
        self.connections.as_ref().context("users log in in the mode `embedded` alone")
    }
}

/// A backend that was made.
pub(crate) struct Made {
    pub(crate) backend: Arc<dyn Backend>,
    /// Where each user has an account of their own: who knows whether they do.
    pub(crate) accounts: Option<Arc<dyn Accounts>>,
}

pub(crate) fn make_backend(
    config: &Config,
    name: &str,
    backend: &config::Backend,
    means: &Means,
) -> anyhow::Result<Made> {
    let (tasks, peers) = (&means.tasks, &means.peers);
    let name = BackendName::parse(name).ok_or_else(|| anyhow!("not a name"))?;
    let mut options = Options {
        era: match backend.era {
            Era::Auto => EraChoice::Auto,
            Era::Legacy => EraChoice::Legacy,
            Era::Modern => EraChoice::Modern,
        },
        session_scope: match backend.session_scope {
            config::SessionScope::ClientSession => SessionScope::ClientSession,
            config::SessionScope::Principal => SessionScope::Principal,
            config::SessionScope::Shared => SessionScope::Shared,
            config::SessionScope::None => SessionScope::None,
        },
        era_ttl: backend.era_ttl,
        connect_timeout: backend.connect_timeout,
        first_byte_timeout: backend.first_byte_timeout,
        idle_timeout: backend.idle_timeout,
        timeout: backend.timeout,
        list_timeout: backend.list_timeout,
        session_idle: config.limits.session_idle,
        peers: peers.clone(),
        max_result_bytes: config.limits.max_result_bytes,
        max_event_bytes: config.limits.max_event_bytes,
        max_line_bytes: config.limits.max_line_bytes,
        metrics: means.metrics.backend(name.as_str()),
        ..Options::new(name.clone())
    };
    let made = match &backend.kind {
        BackendKind::Http(http) => {
            let target = Target::parse(http.url.as_str())?;
            let reach = outbound_options(config, http, &options, means.workers)?;
            if let Some(shown) = &reach.client_certificate {
                let shown: Weak<dyn Ends> = Arc::<ClientCertificate>::downgrade(shown);
                options.metrics.shows(shown);
            }
            let outbound = Outbound::new(target.uri(), &reach)?;
            let transport = match http.transport {
                Transport::Auto => TransportChoice::Auto,
                Transport::StreamableHttp => TransportChoice::StreamableHttp,
                Transport::Sse => TransportChoice::Sse,
            };
            let (proof, accounts) = proof::proof(config, &name, http, means)?;
            let made = HttpBackend::new(target, proof, transport, outbound, options, tasks.clone());
            return Ok(Made { backend: made, accounts });
        }
        BackendKind::Stdio(stdio) => {
            options.start_timeout = stdio.start_timeout;
            let spec = Spec {
                args: stdio.args.clone(),
                env: stdio.env.iter().map(|(key, value)| (key.clone(), value.expose().to_owned())).collect(),
                cwd: stdio.cwd.clone(),
                max_line_bytes: options.max_line_bytes,
                stop_grace: stdio.stop_grace,
                ..Spec::new(name.as_str(), stdio.command.clone())
            };
            let limits = ProcessOptions {
                max_processes: stdio.max_processes,
                idle_stop: stdio.idle_stop,
                max_queue: stdio.max_queue,
                queue_timeout: stdio.queue_timeout,
            };
            StdioBackend::new(spec, means.guard.clone(), limits, means.cap.clone(), options, tasks.clone())
        }
    };
    Ok(Made { backend: made, accounts: None })
}

/// How the collector of traces is reached.
pub(crate) fn collector_options(config: &Config) -> OutboundOptions {
    OutboundOptions {
        ca_bundles: config.outbound.ca_bundle.clone(),
        proxy: proxy(config),
        connect_timeout: Duration::from_secs(5),
        workers: 1,
        client_certificate: None,
    }
}

/// How URLs that others have named are followed.
pub(crate) fn guard_options(config: &Config) -> GuardOptions {
    GuardOptions {
        ca_bundles: config.outbound.ca_bundle.clone(),
        allow_networks: config.outbound.allow_networks.iter().filter_map(|net| net.parse().ok()).collect(),
    }
}

/// The proxy for `https`, if there is one.
fn proxy(config: &Config) -> Option<Proxy> {
    let proxy = config.outbound.proxy.as_ref()?;
    Some(Proxy { url: proxy.https.as_ref()?.expose().to_owned(), no_proxy: proxy.no_proxy.clone() })
}

fn outbound_options(
    config: &Config,
    http: &config::HttpBackend,
    options: &Options,
    workers: usize,
) -> anyhow::Result<OutboundOptions> {
    let own = &http.ca_bundle;
    let client_certificate = http.client_certificate.as_ref().map(|written| {
        let (certificate, key) = (written.certificate.live(), written.key.live());
        let (certificate, key) = (Arc::new(move || certificate.read()), Arc::new(move || key.read()));
        ClientCertificate::new(options.name.as_str(), certificate, key)
    });
    Ok(OutboundOptions {
        ca_bundles: if own.is_empty() { config.outbound.ca_bundle.clone() } else { own.clone() },
        proxy: proxy(config),
        connect_timeout: options.connect_timeout,
        workers,
        client_certificate: client_certificate.transpose().context("client_certificate")?,
    })
}

/// The backends that users give a key for.
pub(crate) fn key_sites(config: &Config) -> Vec<KeySite> {
    let sites = config.backends.iter().filter_map(|(name, backend)| {
        let BackendKind::Http(http) = &backend.kind else { return None };
        let Some(BackendAuth::UserSecret(written)) = &http.auth else { return None };
        let config::UserSecret { header, scheme, help } = written.clone();
        Some(KeySite { name: name.clone(), url: http.url.clone(), header, scheme, help })
    });
    sites.collect()
}

/// The backends at which users have accounts.
pub(crate) fn sites(config: &Config) -> Vec<Site> {
    let sites = config.backends.iter().filter_map(|(name, backend)| {
        let BackendKind::Http(http) = &backend.kind else { return None };
        let Some(BackendAuth::UserOAuth(written)) = &http.auth else { return None };
        let secret = || written.client_secret.as_ref().map(config::Secret::live);
        Some(Site {
            name: name.clone(),
            url: http.url.clone(),
            issuer: written.issuer.clone(),
            client: written.client_id.clone().map(|id| (id, secret())),
            scopes: written.scopes.clone(),
            resource: written.resource.clone(),
            trusted: Arc::new(server_fetcher(config, http)),
        })
    });
    sites.collect()
}
