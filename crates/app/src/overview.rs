//! What operators see of the gateway: each instance says what it has, and any of them puts that together.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use drawbridge_admin::api::configuration::{Configuration, Setting, SettingSource};
use drawbridge_admin::api::gateway::{
    Backend, BackendState, Connection, Endpoint, Gateway, Instance, LastError, Session,
};
use drawbridge_auth::resource::Origin;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::relay::{frame, unframe};
use drawbridge_core::fleet::{Channel, Service};
use drawbridge_core::state::InstanceId;
use drawbridge_credentials::connections::{Connections, Shown};
use drawbridge_front::SessionOverview;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::config::{BackendKind, Era, SessionScope, ValueSource};
use crate::reload::Status;
use crate::wiring::Wired;

/// The name of the service between instances.
const SERVICE: &str = "overview";
/// An instance that takes longer is shown as one that does not answer.
const TIME: Duration = Duration::from_secs(2);

/// The view of all instances from one of them.
pub(crate) struct Overview {
    wired: Arc<Wired>,
    name: String,
    started_at: DateTime<Utc>,
    /// What names the resources, where tokens name them.
    origin: Option<Origin>,
    /// What users have at backends, if there are such.
    connections: Option<Arc<Connections>>,
    status: Status,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Question {
    Report,
    Sessions { after: Option<String>, most: usize },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Report {
    instance: Instance,
    backends: BTreeMap<String, BackendState>,
}

impl Overview {
    /// The view from this instance, which has this `name`. The others may ask it from now on.
    pub(crate) fn new(
        wired: Arc<Wired>,
        name: String,
        origin: Option<Origin>,
        connections: Option<Arc<Connections>>,
        status: Status,
    ) -> Arc<Self> {
        let this = Arc::new(Self { wired, name, started_at: Utc::now(), origin, connections, status });
        // What the peers have must not keep all of the gateway.
        this.wired.peers.serve(SERVICE, Arc::new(Desk(Arc::downgrade(&this))));
        this
    }

    fn report(&self) -> Report {
        let wired = &self.wired;
        let id = wired.peers.instance().to_string();
        let gauges = wired.gauges();
        let count = |number: usize| u64::try_from(number).ok();
        let backends = wired.backends();
        let states = backends.iter().map(|backend| {
            let counted = wired.metrics.backend(backend.name().as_str());
            let state = BackendState {
                instance: id.clone(),
                state: match counted.up.get() {
                    Some(true) => "up",
                    Some(false) => "down",
                    None => "untried",
                }
                .to_owned(),
                speaks: backend.speaks().map(ToOwned::to_owned),
                last_error: counted.trouble().map(|trouble| LastError {
                    at: trouble.at.into(),
                    code: trouble.code.to_owned(),
                    message: trouble.message,
                    advice: trouble.advice.to_owned(),
                }),
            };
            (backend.name().to_string(), state)
        });
        Report {
            backends: states.collect(),
            instance: Instance {
                answers: true,
                name: Some(self.name.clone()),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                started_at: Some(self.started_at),
                is_draining: Some(wired.work.clients.is_leaving()),
                sessions: count(gauges.sessions),
                streams: count(gauges.streams.iter().sum()),
                in_flight: count(gauges.in_flight),
                parked: count(gauges.parked),
                id,
            },
        }
    }

    fn own_sessions(&self, after: Option<&str>, most: usize) -> Vec<SessionOverview> {
        self.wired.front.sessions(after.and_then(SessionKey::parse), most)
    }

    /// What each of the instances answers, this one at first; `None` for one that does not.
    async fn ask<T: for<'de> Deserialize<'de>>(
        &self,
        question: &Question,
        own: T,
    ) -> Vec<(InstanceId, Option<T>)> {
        let peers = &self.wired.peers;
        let mut all = vec![(peers.instance().clone(), Some(own))];
        if !peers.state().is_fleet {
            return all;
        }
        let others = match peers.state().bus.instances().await {
            Ok(others) => others,
            Err(error) => {
                tracing::warn!("the other instances are not known now: {error}");
                return all;
            }
        };
        let question = frame(question, &[]);
        let asked = others.into_iter().filter(|other| other != peers.instance()).map(|other| {
            let question = question.clone();
            async move {
                let answer = peers.request(&other, SERVICE, question, TIME).await;
                let read = answer.ok().and_then(|answer| serde_json::from_slice(&answer).ok());
                (other, read)
            }
        });
        all.extend(join_all(asked).await);
        all
    }
}

/// Where the other instances ask.
struct Desk(Weak<Overview>);

#[async_trait]
impl Service for Desk {
    async fn accept(&self, opening: Bytes, channel: Channel) {
        let Some(overview) = self.0.upgrade() else { return };
        let answer = match unframe::<Question>(&opening) {
            Some((Question::Report, _)) => serde_json::to_vec(&overview.report()),
            Some((Question::Sessions { after, most }, _)) => {
                serde_json::to_vec(&overview.own_sessions(after.as_deref(), most))
            }
            None => return,
        };
        // Who asked may be gone.
        let _ = channel.send(answer.unwrap_or_default().into()).await;
    }
}

#[async_trait]
impl Gateway for Overview {
    async fn instances(&self) -> Vec<Instance> {
        let reports = self.ask(&Question::Report, self.report()).await;
        let silent = |id: InstanceId| Instance {
            id: id.to_string(),
            answers: false,
            name: None,
            version: None,
            started_at: None,
            is_draining: None,
            sessions: None,
            streams: None,
            in_flight: None,
            parked: None,
        };
        let of =
            |(id, report): (InstanceId, Option<Report>)| report.map_or_else(|| silent(id), |r| r.instance);
        reports.into_iter().map(of).collect()
    }

    async fn backends(&self) -> Vec<Backend> {
        let reports = self.ask(&Question::Report, self.report()).await;
        let current = self.wired.current.lock();
        let config = current.config();
        let described = config.backends.iter().map(|(name, backend)| {
            let (kind, target) = match &backend.kind {
                BackendKind::Http(http) => {
                    let mut url = http.url.clone();
                    url.set_query(None);
                    ("http", url.to_string())
                }
                BackendKind::Stdio(stdio) => ("stdio", stdio.command.clone()),
            };
            let behind = config.endpoints.iter().filter(|(_, endpoint)| endpoint.backends.contains(name));
            Backend {
                name: name.clone(),
                kind: kind.to_owned(),
                target,
                era: match backend.era {
                    Era::Auto => "auto",
                    Era::Legacy => "legacy",
                    Era::Modern => "modern",
                }
                .to_owned(),
                session_scope: match backend.session_scope {
                    SessionScope::ClientSession => "client_session",
                    SessionScope::Principal => "principal",
                    SessionScope::Shared => "shared",
                    SessionScope::None => "none",
                }
                .to_owned(),
                endpoints: std::iter::once(name).chain(behind.map(|(name, _)| name)).cloned().collect(),
                instances: reports
                    .iter()
                    .filter_map(|(_, r)| r.as_ref()?.backends.get(name).cloned())
                    .collect(),
            }
        });
        described.collect()
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let current = self.wired.current.lock();
        let of = |endpoint: &Arc<drawbridge_core::Endpoint>| {
            let name = endpoint.name().map(ToString::to_string);
            Endpoint {
                path: drawbridge_auth::resource::path_of(name.as_deref()),
                resource: self.origin.as_ref().map(|origin| origin.resource(name.as_deref())),
                backends: endpoint.backends().iter().map(|backend| backend.name().to_string()).collect(),
                name,
            }
        };
        current.endpoints().iter().map(of).collect()
    }

    fn configuration(&self) -> Configuration {
        let known = self.status.read();
        let values = self.status.values(self.wired.current.lock().config());
        let of = |(key, value, source): (String, serde_json::Value, ValueSource)| Setting {
            key,
            value,
            source: match source {
                ValueSource::File => SettingSource::File,
                ValueSource::List => SettingSource::McpServers,
                ValueSource::Flag => SettingSource::Flag,
                ValueSource::Environment => SettingSource::Environment,
                ValueSource::Default => SettingSource::Default,
            },
        };
        Configuration {
            instance: self.wired.peers.instance().to_string(),
            generation: known.generation,
            applied_at: known.applied_at,
            files: known.files,
            restart_needed_for: known.restart_needed_for,
            settings: values.into_iter().map(of).collect(),
        }
    }

    async fn sessions(&self, after: Option<String>, most: usize) -> (Vec<Session>, bool) {
        // One more than is shown says whether there are more.
        let wanted = most.saturating_add(1);
        let own = self.own_sessions(after.as_deref(), wanted);
        let answers = self.ask(&Question::Sessions { after, most: wanted }, own).await;
        let mut all: BTreeMap<String, Session> = BTreeMap::new();
        for (instance, sessions) in answers {
            for seen in sessions.unwrap_or_default() {
                let session = all.entry(seen.key.clone()).or_insert_with(|| Session {
                    key: seen.key,
                    endpoint: seen.endpoint,
                    caller: None,
                    oauth_client: None,
                    client_name: seen.client_name,
                    client_version: seen.client_version,
                    protocol_version: seen.protocol_version,
                    calls: 0,
                    has_stream: false,
                    idle_seconds: u64::MAX,
                    instances: Vec::new(),
                });
                session.caller = session.caller.take().or(seen.caller);
                session.oauth_client = session.oauth_client.take().or(seen.oauth_client);
                session.calls += u64::try_from(seen.calls).unwrap_or(u64::MAX);
                session.has_stream |= seen.has_stream;
                session.idle_seconds = session.idle_seconds.min(seen.idle_seconds);
                session.instances.push(instance.to_string());
            }
        }
        let more = all.len() > most;
        (all.into_values().take(most).collect(), more)
    }

    async fn connections(&self, user: &str) -> Result<Vec<Connection>, String> {
        let Some(connections) = &self.connections else { return Ok(Vec::new()) };
        let shown = connections.shown(user).await.map_err(|error| error.to_string())?;
        let of = |shown: Shown| Connection {
            backend: shown.backend,
            host: shown.host,
            status: shown.status.map(|status| status.as_str().to_owned()),
            since: shown.since,
        };
        Ok(shown.into_iter().map(of).collect())
    }

    async fn disconnect(&self, user: &str, backend: &str) -> Result<bool, String> {
        let Some(connections) = &self.connections else { return Ok(false) };
        if !connections.is_known(backend) {
            return Ok(false);
        }
        connections.disconnect(user, backend).await.map_err(|error| error.to_string())?;
        Ok(true)
    }

    async fn forget_login(&self, user: &str) -> Result<(), String> {
        let Some(connections) = &self.connections else { return Ok(()) };
        connections.forget_login(user).await.map_err(|error| error.to_string())
    }

    async fn end_session(&self, key: &str) -> bool {
        let Some(key) = SessionKey::parse(key) else { return false };
        self.wired.front.end_session(key).await;
        true
    }
}
