//! From one configuration to the next while the gateway runs: what is the same goes on, the rest is made anew.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use drawbridge_core::accounts::Personal;
use drawbridge_core::rights::Selection;
use drawbridge_core::{Backend, BackendName, Endpoint, Keeping, Recalling, Screen};
use sha2::{Digest as _, Sha256};

use crate::clients::named_clients;
use crate::config::{self, AuthMode, BackendKind, Config};
use crate::telemetry;
use crate::wiring::exchange::set_logins;
use crate::wiring::{Wired, front_options, key_sites, make_backend, round_options, sites, trust};

/// A request that has found its endpoint before a change sends its call to the backend within this time.
const LATE: Duration = Duration::from_secs(1);

/// What the configuration that applies has made.
pub struct Current {
    config: Config,
    backends: BTreeMap<String, Kept>,
    endpoints: Vec<Arc<Endpoint>>,
}

impl Current {
    /// Before a configuration was applied.
    pub fn before(config: &Config) -> Self {
        Self { config: config.clone(), backends: BTreeMap::new(), endpoints: Vec::new() }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }
}

#[derive(Clone)]
struct Kept {
    basis: Basis,
    recalling: Arc<Recalling>,
    /// The same, with what stands before it.
    backend: Arc<dyn Backend>,
}

/// The backends of an endpoint, in order.
type Behind = Vec<Arc<dyn Backend>>;

/// All that a backend is made of. One with an equal basis is the same backend.
#[derive(Clone, PartialEq)]
struct Basis {
    backend: config::Backend,
    sizes: [usize; 3],
    /// Of one reached over HTTP.
    outbound: Option<config::Outbound>,
    /// The authorities that it trusts, by what is in their files.
    authorities: Vec<(PathBuf, Option<[u8; 32]>)>,
}

impl Basis {
    fn of(config: &Config, backend: &config::Backend) -> Self {
        let limits = &config.limits;
        let bundles = match &backend.kind {
            BackendKind::Http(http) if !http.ca_bundle.is_empty() => &http.ca_bundle[..],
            BackendKind::Http(_) => &config.outbound.ca_bundle[..],
            BackendKind::Stdio(_) => &[],
        };
        let content = |path: &PathBuf| std::fs::read(path).ok().map(|bytes| Sha256::digest(bytes).into());
        Self {
            backend: backend.clone(),
            sizes: [limits.max_result_bytes, limits.max_event_bytes, limits.max_line_bytes],
            outbound: matches!(backend.kind, BackendKind::Http(_)).then(|| config.outbound.clone()),
            authorities: bundles.iter().map(|path| (path.clone(), content(path))).collect(),
        }
    }
}

/// Names that are there in one configuration and not, or otherwise, in the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Only in the new one.
    pub added: Vec<String>,
    /// In both, and different.
    pub changed: Vec<String>,
    /// Only in the old one.
    pub removed: Vec<String>,
}

impl Names {
    fn between<T>(
        old: &BTreeMap<String, T>,
        new: &BTreeMap<String, T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Self {
        let only_in = |one: &BTreeMap<String, T>, other: &BTreeMap<String, T>| {
            one.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
        };
        let differ = |(name, one): &(&String, &T)| new.get(*name).is_some_and(|other| !same(one, other));
        Self {
            added: only_in(new, old),
            changed: old.iter().filter(differ).map(|(name, _)| name.clone()).collect(),
            removed: only_in(old, new),
        }
    }
}

/// What a new configuration has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Backends.
    pub backends: Names,
    /// Named endpoints.
    pub endpoints: Names,
    /// Other keys whose new value applies.
    pub keys: Vec<&'static str>,
    /// Keys whose new value applies after a restart.
    pub restart_needed: Vec<&'static str>,
}

/// A key: whether two configurations differ in it, and how the one takes the value of the other.
type Key = (&'static str, fn(&Config, &Config) -> bool, fn(&mut Config, &Config));

macro_rules! keys {
    ($($key:literal = $($field:ident).+,)*) => {
        &[$(($key, |a, b| a.$($field).+ != b.$($field).+, |to, from| to.$($field).+ = from.$($field).+.clone()),)*]
    };
}

/// Keys beside backends and endpoints whose values can change while the gateway runs.
const LIVE: &[Key] = keys![
    "public.url" = public.url,
    "public.allowed_origins" = public.allowed_origins,
    "public.allowed_hosts" = public.allowed_hosts,
    "public.trusted_proxies" = public.trusted_proxies,
    "log.format" = log.format,
    "log.level" = log.level,
    "auth.clients" = clients,
    "limits.max_body_bytes" = limits.max_body_bytes,
    "limits.max_header_bytes" = limits.max_header_bytes,
    "limits.max_result_bytes" = limits.max_result_bytes,
    "limits.max_event_bytes" = limits.max_event_bytes,
    "limits.max_line_bytes" = limits.max_line_bytes,
    "limits.max_connections" = limits.max_connections,
    "limits.max_sessions" = limits.max_sessions,
    "limits.max_streams" = limits.max_streams,
    "limits.session_idle" = limits.session_idle,
    "limits.max_processes" = limits.max_processes,
    "limits.max_in_flight" = limits.max_in_flight,
    "limits.answer_timeout" = limits.answer_timeout,
    "limits.max_rounds" = limits.max_rounds,
    "limits.max_parked_calls" = limits.max_parked_calls,
    "limits.caller_requests_per_minute" = limits.caller_requests_per_minute,
    "limits.caller_burst" = limits.caller_burst,
    "limits.token" = limits.token,
    "limits.endpoints" = limits.endpoints,
    "limits.tools" = limits.tools,
    "streams.keep_alive" = streams.keep_alive,
    "streams.retry" = streams.retry,
    "streams.sse_after" = streams.sse_after,
    "policies" = policies,
    "drain.delay" = drain.delay,
    "drain.deadline" = drain.deadline,
    "outbound.ca_bundle" = outbound.ca_bundle,
    "outbound.proxy" = outbound.proxy,
];

/// Keys whose values are those of the start: sockets, files and keys that much depends on.
const RESTART: &[Key] = keys![
    "instance_id" = instance_id,
    "public.listen" = public.listen,
    "admin.listen" = admin.listen,
    "admin.probes" = admin.probes,
    "admin.bootstrap_token" = admin.bootstrap_token,
    "redis" = redis,
    "data_dir" = data_dir,
    "seal.keys" = seal_keys,
    "auth" = auth,
    "database" = database,
    "audit" = audit,
    "outbound.allow_networks" = outbound.allow_networks,
    "tracing.otlp" = otlp,
    "limits.event_log_bytes" = limits.event_log_bytes,
    "limits.event_log_ttl" = limits.event_log_ttl,
];

/// Whether a value of this key is that of the start, whatever was read since.
pub(crate) fn needs_restart(key: &str) -> bool {
    let is_below = |above: &str| {
        key.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let any = |keys: &[Key]| keys.iter().any(|(above, ..)| is_below(above));
    any(RESTART) && !any(LIVE)
}

fn differing(keys: &[Key], one: &Config, other: &Config) -> Vec<&'static str> {
    keys.iter().filter(|(_, differ, _)| differ(one, other)).map(|(key, ..)| *key).collect()
}

impl Wired {
    /// Lets a configuration apply, whole: requests see all of the old one or all of the new one. Backends that it
    /// doesn't change go on with their connections, processes and sessions. Those that it changes or leaves out are
    /// closed when their calls have ended.
    ///
    /// # Errors
    ///
    /// If a backend can't be made of it. Then nothing has changed.
    pub fn apply(&self, config: &Config) -> anyhow::Result<Changes> {
        let mut current = self.current.lock();
        let restart_needed = differing(RESTART, &current.config, config);
        let mut config = config.clone();
        RESTART.iter().for_each(|(_, _, keep)| keep(&mut config, &current.config));
        let backends = self.backends_of(&config, &current.backends)?;
        let endpoints = self.endpoints_of(
            &config,
            &backends,
            &current.endpoints,
            // Who listens is told that what they may see has changed.
            config.policies == current.config.policies,
        )?;
        let clients = named_clients(&config)?;

        let changes = Changes {
            backends: Names::between(&current.backends, &backends, |a, b| {
                Arc::ptr_eq(&a.backend, &b.backend)
            }),
            endpoints: Names::between(&current.config.endpoints, &config.endpoints, PartialEq::eq),
            keys: differing(LIVE, &current.config, &config),
            restart_needed,
        };
        if let Some(known) = &self.means.clients {
            known.set(clients);
        }
        if let Some(connections) = &self.means.connections {
            connections.set_sites(sites(&config));
            connections.set_keys(key_sites(&config));
            set_logins(connections, &config);
        }
        self.rounds.set_options(round_options(&config));
        self.means.cap.resize(config.limits.max_processes, &self.work.backends);
        let behind = endpoints.iter().map(|endpoint| {
            let backends = endpoint.backends().iter().map(|backend| backend.name().to_string());
            (endpoint.name().map(ToString::to_string), backends.collect())
        });
        self.names.set(behind.collect());
        self.front.apply(front_options(&config), endpoints.clone());
        telemetry::apply(&config.log);
        let is_shown = |name: &str| endpoints.iter().any(|endpoint| endpoint.display_name() == name);
        self.metrics.retain(is_shown, |name| backends.contains_key(name));
        let old = std::mem::replace(&mut *current, Current { config, backends, endpoints });
        for (name, kept) in old.backends {
            if !current.backends.get(&name).is_some_and(|other| Arc::ptr_eq(&other.backend, &kept.backend)) {
                self.retire(kept, old.config.limits.answer_timeout);
            }
        }
        Ok(changes)
    }

    fn backends_of(
        &self,
        config: &Config,
        current: &BTreeMap<String, Kept>,
    ) -> anyhow::Result<BTreeMap<String, Kept>> {
        let mut backends = BTreeMap::new();
        for (name, backend) in &config.backends {
            let basis = Basis::of(config, backend);
            let same = current.get(name).filter(|kept| kept.basis == basis).cloned();
            let kept = match same {
                Some(kept) => kept,
                None => {
                    let made = make_backend(config, name, backend, &self.means);
                    let made = made.with_context(|| format!("backend \"{name}\""))?;
                    let counted = self.metrics.backend(name);
                    let keeping = Keeping { cache: backend.cache, list_ttl: backend.list_ttl };
                    let recalling = Recalling::new(made.backend, keeping, &self.peers, counted);
                    let screen = Screen::new(recalling.clone(), trust(config, backend), self.keys.clone());
                    let whole: Arc<dyn Backend> = match made.accounts {
                        Some(accounts) => Personal::new(screen, accounts, &self.peers, &self.work.backends),
                        None => screen,
                    };
                    Kept { basis, backend: whole, recalling }
                }
            };
            backends.insert(name.clone(), kept);
        }
        Ok(backends)
    }

    /// `/mcp` in front of all backends, an endpoint for each of them, and those that have names of their own. One that
    /// would be the same is the same.
    fn endpoints_of(
        &self,
        config: &Config,
        backends: &BTreeMap<String, Kept>,
        current: &[Arc<Endpoint>],
        is_ruled_the_same: bool,
    ) -> anyhow::Result<Vec<Arc<Endpoint>>> {
        let all = backends.values().map(|kept| kept.backend.clone()).collect();
        let mut wanted: Vec<(Option<BackendName>, Behind, Selection)> =
            vec![(None, all, Selection::default())];
        let named = |name: &str| BackendName::parse(name).ok_or_else(|| anyhow!("\"{name}\" is not a name"));
        for (name, kept) in backends {
            wanted.push((Some(named(name)?), vec![kept.backend.clone()], Selection::default()));
        }
        for (name, endpoint) in &config.endpoints {
            let behind = endpoint.backends.iter().filter_map(|b| Some(backends.get(b)?.backend.clone()));
            wanted.push((Some(named(name)?), behind.collect(), endpoint.selection.clone()));
        }
        let asks_callers = config.auth.mode != AuthMode::None;
        let made = wanted.into_iter().map(|(name, behind, selection)| {
            let is_same = |old: &&Arc<Endpoint>| {
                let old_behind = old.backends();
                old.name() == name.as_ref()
                    && *old.selection() == selection
                    && is_ruled_the_same
                    && old_behind.len() == behind.len()
                    && old_behind.iter().zip(&behind).all(|(a, b)| Arc::ptr_eq(a, b))
            };
            if let Some(same) = current.iter().find(is_same) {
                return same.clone();
            }
            let endpoint = Endpoint::new(name, behind, self.keys.clone(), self.rounds.clone());
            let counted = self.metrics.endpoint(endpoint.display_name());
            let endpoint = endpoint.selecting(selection).asking_callers(asks_callers);
            Arc::new(endpoint.counted(counted).audited(self.audit.clone()))
        });
        Ok(made.collect())
    }

    /// Closes a backend that is no more when its calls have ended.
    fn retire(&self, kept: Kept, answer_timeout: Duration) {
        // A call may last as long as this, and wait for its client besides.
        let limit = kept.basis.backend.timeout.saturating_add(answer_timeout);
        let stopped = self.work.clients.stop_token().clone();
        self.work.backends.spawn("retire backend", async move {
            let ended = async {
                tokio::time::sleep(LATE).await;
                kept.recalling.quiet().await;
            };
            tokio::select! {
                _ = tokio::time::timeout(limit, ended) => {}
                () = stopped.cancelled() => {}
            }
            kept.backend.close().await;
            tracing::info!(backend.name = %kept.backend.name(), "the backend that was replaced is closed");
        });
    }

    /// How the gateway is to end.
    pub fn drain(&self) -> config::Drain {
        self.current.lock().config.drain.clone()
    }

    /// All backends, to be closed at the end.
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        self.current.lock().backends.values().map(|kept| kept.backend.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/configuration.md");

    #[test]
    fn the_page_names_the_keys_that_need_a_restart() {
        let line = PAGE.lines().find(|line| line.starts_with("A restart is needed for ")).unwrap();
        let named: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        let keys: Vec<&str> = RESTART.iter().map(|(key, ..)| *key).collect();
        assert_eq!(named, keys);
    }

    #[test]
    fn every_key_of_the_page_is_live_or_not() {
        let known: Vec<&str> = LIVE.iter().chain(RESTART).map(|(key, ..)| *key).collect();
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let elsewhere = ["backends.", "endpoints.", "database.", "auth.i_know", "--", "sse", "DRAW"];
        let keys = rows.filter(|key| key.contains('.') && !elsewhere.iter().any(|e| key.starts_with(e)));
        for key in keys {
            assert!(known.iter().any(|known| key.starts_with(known)), "{key}");
        }
    }

    #[test]
    fn what_differs_is_named() {
        let (mut old, mut new) = (Config::default(), Config::default());
        assert_eq!(differing(LIVE, &old, &new), <[&str; 0]>::default());
        new.limits.max_streams = 7;
        new.public.listen = "127.0.0.1:1".parse().unwrap();
        assert_eq!(differing(LIVE, &old, &new), ["limits.max_streams"]);
        assert_eq!(differing(RESTART, &old, &new), ["public.listen"]);
        RESTART.iter().for_each(|(_, _, keep)| keep(&mut old, &new));
        assert_eq!((differing(RESTART, &old, &new), old.limits.max_streams), (Vec::new(), 10_000));
        let map =
            |names: &[(&str, u8)]| names.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let names = Names::between(
            &map(&[("a", 1), ("b", 1), ("c", 1)]),
            &map(&[("b", 1), ("c", 2), ("d", 1)]),
            u8::eq,
        );
        let expected =
            Names { added: vec!["d".into()], changed: vec!["c".into()], removed: vec!["a".into()] };
        assert_eq!(names, expected);
    }
}
