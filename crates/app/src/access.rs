//! Who may: records, tokens, the authorization server, made of the configuration and looked after while the gateway runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use chrono::{TimeDelta, Utc};
use drawbridge_admin::api::gateway::Gateway;
use drawbridge_admin::api::{Admission, Api, BOOTSTRAP};
use drawbridge_auth::audit::AuditTrail;
use drawbridge_auth::id_jag;
use drawbridge_auth::jwks::{Jwks, Location};
use drawbridge_auth::jwt::{ALGORITHMS, Algorithm, Policy};
use drawbridge_auth::named_clients::NamedClients;
use drawbridge_auth::opaque::Introspection;
use drawbridge_auth::records::{Records, RecordsError, SecretHash, Token};
use drawbridge_auth::resource::Origin;
use drawbridge_auth::revoking::Revocations;
use drawbridge_auth::scope::ADMIN_ALL;
use drawbridge_auth::signing::Signer;
use drawbridge_auth::token::{self, Secret, SecretKind, TokenKind};
use drawbridge_auth::verifier::{Issuer, Verifier};
use drawbridge_core::Tasks;
use drawbridge_core::seal::KeyRing;
use drawbridge_core::state::{SharedState, WithFallback};
use drawbridge_credentials::authority::{Authorities, Pins};
use drawbridge_credentials::caller::{Callers, OfRecords};
use drawbridge_credentials::connections::Connections;
use drawbridge_front::gate::{Gate, PeerAddress};
use drawbridge_oauth::oidc::{Provider, ProviderOptions};
use drawbridge_oauth::options::{ClientDocumentOptions, Options, Registration};
use drawbridge_oauth::{ClientAddress, Documents, Endpoints};
use drawbridge_sql::{MigrationError, SqlRecords};
use http::Request;
use parking_lot::{Mutex, RwLock};

use crate::audit::Audit;
use crate::config::{self, AuthMode, Config, External, RegistrationPolicy};
use crate::fetch::{Fetcher, GuardedFetcher};
use crate::wiring::{collector_options, guard_options};

/// How long the first token that is made for an administrator is good for.
const BOOTSTRAP_TIME: TimeDelta = TimeDelta::hours(24);
/// How often signing keys are looked after, and what was used is written down.
const TEND_EVERY: Duration = Duration::from_secs(60);
/// How often what can matter to nobody any more is forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// How soon a database that was away is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// What a database has to answer in at the start, before it is said to be away.
const FIRST_TRY: Duration = Duration::from_secs(10);

/// The endpoints that there are now, and the names of what is behind them. The default one has no name, and is always
/// there.
#[derive(Debug, Clone, Default)]
pub struct EndpointNames(Arc<RwLock<BTreeMap<Option<String>, Vec<String>>>>);

impl EndpointNames {
    /// Replaces them.
    pub fn set(&self, endpoints: BTreeMap<Option<String>, Vec<String>>) {
        *self.0.write() = endpoints;
    }
}

impl Endpoints for EndpointNames {
    fn backends(&self, endpoint: Option<&str>) -> Option<Vec<String>> {
        let found = self.0.read().get(&endpoint.map(str::to_owned)).cloned();
        if endpoint.is_none() { Some(found.unwrap_or_default()) } else { found }
    }

    fn names(&self) -> Vec<String> {
        self.0.read().keys().flatten().cloned().collect()
    }
}

/// All that is needed to know who may.
pub struct Access {
    /// Durable records.
    pub records: Arc<SqlRecords>,
    /// What was revoked.
    pub revocations: Arc<Revocations>,
    /// Knows credentials.
    pub verifier: Arc<Verifier>,
    clients: Arc<NamedClients>,
    signer: Option<Arc<Signer>>,
    origin: Option<Origin>,
    shared: SharedState,
    tasks: Tasks,
    /// Of the first administrator's token, if the configuration has one.
    bootstrap: Option<SecretHash>,
    trail: Arc<AuditTrail>,
    is_prepared: AtomicBool,
    trouble: Mutex<Option<String>>,
}

/// Where records are, as the configuration says.
pub fn database_url(config: &Config) -> String {
    match &config.database {
        Some(url) => url.expose().to_owned(),
        None => format!("sqlite:{}", config.data_dir.join("drawbridge.db").display()),
    }
}

impl Access {
    /// What the configuration asks for, over the database of `audit`; `None` if callers are not asked who they are.
    /// `public` is where clients connect. What nobody waits for is among `tasks`.
    ///
    /// # Errors
    ///
    /// If the database can't be used. One that is away may come back.
    pub async fn open(
        config: &Config,
        public: SocketAddr,
        shared: &SharedState,
        ring: &Arc<KeyRing>,
        audit: &Audit,
        tasks: &Tasks,
    ) -> anyhow::Result<Option<Arc<Self>>> {
        if config.auth.mode == AuthMode::None {
            return Ok(None);
        }
        let sql = audit.records.clone();
        let records: Arc<dyn Records> = sql.clone();
        let revocations = Revocations::new(records.clone(), shared.revocations.clone());
        let is_embedded = config.auth.mode == AuthMode::Embedded;
        let is_found = is_embedded || config.auth.mode == AuthMode::External;
        let origin = is_found.then(|| match &config.public.url {
            Some(url) => Ok(Origin::of(url)),
            None => format!("http://{public}").parse().map(|url| Origin::of(&url)),
        });
        let origin = origin.transpose()?;
        let own = origin.as_ref().filter(|_| is_embedded);
        let signer = own.map(|origin| Arc::new(Signer::new(origin.as_str(), records.clone(), ring.clone())));
        let clients = Arc::new(NamedClients::new(revocations.clone()));
        let mut issuers: Vec<Issuer> = Vec::new();
        if let Some(signer) = &signer {
            issuers.push(Issuer {
                policy: signer.policy(),
                keys: signer.clone(),
                own: Some(clients.clone()),
                introspection: None,
            });
        }
        if config.auth.mode == AuthMode::External {
            let fetcher = Arc::new(Fetcher::new(collector_options(config)));
            issuers.extend(config.auth.external.iter().map(|issuer| external(issuer, &fetcher, tasks)));
        }
        let limiter = WithFallback::new(shared.limiter.clone());
        let (resources, revoked) = (origin.clone(), revocations.clone());
        let verifier = Arc::new(Verifier::new(resources, records, revoked, issuers, limiter, tasks.clone()));
        let this = Arc::new(Self {
            records: sql.clone(),
            revocations,
            verifier,
            clients,
            signer,
            origin,
            shared: shared.clone(),
            tasks: tasks.clone(),
            bootstrap: config.admin.bootstrap_token.as_ref().map(|secret| token::hash(secret.expose())),
            trail: audit.trail.clone(),
            is_prepared: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        match tokio::time::timeout(FIRST_TRY, this.prepare()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if may_pass(&error) => this.is_in_trouble(&format!("{error:#}")),
            Ok(Err(error)) => return Err(error),
            Err(_) => this.is_in_trouble("the database does not answer"),
        }
        Ok(Some(this))
    }

    fn is_in_trouble(&self, why: &str) {
        tracing::warn!("the database can't be used yet; it is tried again: {why}");
        *self.trouble.lock() = Some(why.to_owned());
    }

    /// Brings the database up to date, reads what was revoked and the keys, and lets a first administrator in.
    async fn prepare(&self) -> anyhow::Result<()> {
        let applied = self.records.migrate().await.context("database")?;
        if !applied.is_empty() {
            tracing::info!(migrations = applied.join(","), "the database was brought up to date");
        }
        self.revocations.read().await?;
        if let Some(signer) = &self.signer {
            signer.tend().await?;
        }
        self.let_first_administrator_in().await?;
        *self.trouble.lock() = None;
        self.is_prepared.store(true, Ordering::Release);
        Ok(())
    }

    /// Where there is no admin token at all, one is made and shown once.
    async fn let_first_administrator_in(&self) -> anyhow::Result<()> {
        let now = Utc::now();
        if self.bootstrap.is_some() || self.records.has_token(TokenKind::Admin, "", now).await? {
            return Ok(());
        }
        let is_first = self.shared.claims.claim("bootstrap", Duration::from_secs(60)).await;
        if !is_first.unwrap_or(true) {
            return Ok(());
        }
        let secret = Secret::fresh(SecretKind::Admin);
        let id = drawbridge_auth::fresh_id();
        let token = Token {
            chain: id.clone(),
            id,
            kind: TokenKind::Admin,
            name: BOOTSTRAP.to_owned(),
            owner: None,
            service: Some(BOOTSTRAP.to_owned()),
            hint: secret.hint().to_owned(),
            scopes: BTreeSet::from([ADMIN_ALL.to_owned()]),
            endpoints: BTreeSet::new(),
            networks: BTreeSet::new(),
            groups: BTreeSet::new(),
            version: 0,
            created_by: BOOTSTRAP.to_owned(),
            created_at: now,
            expires_at: Some(now + BOOTSTRAP_TIME),
            last_used_at: None,
            last_used_from: None,
            revoked_at: None,
            revoked_by: None,
            rotated_to: None,
        };
        self.records.add_token(&token, &secret.hash()).await?;
        say_once(secret.expose());
        Ok(())
    }

    /// Why credentials can't be checked.
    pub fn trouble(&self) -> Option<String> {
        if self.is_prepared.load(Ordering::Acquire) {
            return None;
        }
        let why = self.trouble.lock().clone();
        Some(why.unwrap_or_else(|| "the database was not read yet".to_owned()))
    }

    /// Asks callers who they are.
    pub fn gate(&self) -> Gate {
        Gate { verifier: self.verifier.clone(), discovery: self.origin.clone() }
    }

    /// The OAuth clients that the configuration names.
    pub(crate) fn clients(&self) -> &Arc<NamedClients> {
        &self.clients
    }

    /// What names the resources, where tokens name them.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// The API for operators of `gateway`.
    pub fn admin_api(self: &Arc<Self>, gateway: Arc<dyn Gateway>) -> Router {
        let this = self.clone();
        drawbridge_admin::api::routes(Api {
            admission: Admission::Credentials { verifier: self.verifier.clone(), bootstrap: self.bootstrap },
            records: self.records.clone(),
            revocations: self.revocations.clone(),
            trail: self.trail.clone(),
            audit: self.records.clone(),
            claims: self.shared.claims.clone(),
            limiter: self.shared.limiter.clone(),
            trouble: Arc::new(move || this.trouble()),
            gateway: Some(gateway),
        })
    }

    /// What is answered at paths where there is no MCP.
    ///
    /// # Errors
    ///
    /// If the authorities of the configuration can't be read.
    pub fn router(
        &self,
        config: &Config,
        ring: &Arc<KeyRing>,
        names: &EndpointNames,
        connections: Option<Arc<Connections>>,
    ) -> anyhow::Result<Router> {
        let Some(origin) = &self.origin else { return Ok(drawbridge_oauth::nothing()) };
        let Some(signer) = &self.signer else {
            let issuer = config.auth.external.first().map(|external| external.issuer.clone());
            return Ok(drawbridge_oauth::documents(Documents {
                origin: origin.clone(),
                issuer: issuer.unwrap_or_default(),
                resource_name: config.auth.name.clone(),
                endpoints: Arc::new(names.clone()),
            }));
        };
        let provider = config.auth.login.as_ref().map(|login| {
            let options = ProviderOptions {
                issuer: login.issuer.clone(),
                client_id: login.client_id.clone(),
                client_secret: login.client_secret.as_ref().map(config::Secret::live),
                scopes: login.scopes.clone(),
                groups_claim: login.groups_claim.clone(),
            };
            let fetcher = Arc::new(Fetcher::new(collector_options(config)));
            Provider::new(options, fetcher, self.tasks.clone())
        });
        let fetcher = Arc::new(Fetcher::new(collector_options(config)));
        let id_jag = config.auth.id_jag.iter().map(|provider| {
            let location = provider.jwks_uri.clone().map_or(Location::Discovered, Location::Url);
            let keys = Jwks::new(&provider.issuer, location, fetcher.clone(), self.tasks.clone());
            id_jag::Provider::new(&provider.issuer, Arc::new(keys))
        });
        let router = drawbridge_oauth::server(drawbridge_oauth::Parts {
            origin: origin.clone(),
            options: options(config),
            provider,
            id_jag: id_jag.collect(),
            clients: self.clients.clone(),
            guarded: Arc::new(GuardedFetcher::new(&guard_options(config)).context("outbound.ca_bundle")?),
            records: self.records.clone(),
            signer: signer.clone(),
            revocations: self.revocations.clone(),
            verifier: self.verifier.clone(),
            ring: ring.clone(),
            claims: self.shared.claims.clone(),
            limiter: self.shared.limiter.clone(),
            endpoints: Arc::new(names.clone()),
            connections,
            tasks: self.tasks.clone(),
            trail: self.trail.clone(),
        });
        Ok(router.layer(axum::middleware::map_request(|mut request: Request<Body>| async {
            if let Some(PeerAddress(address)) = request.extensions().get().copied() {
                request.extensions_mut().insert(ClientAddress(address));
            }
            request
        })))
    }

    /// Where the authorization servers of backends are pinned.
    ///
    /// # Errors
    ///
    /// If the authorities of the configuration can't be read.
    pub fn pins(&self, config: &Config) -> anyhow::Result<Pins> {
        let guarded = GuardedFetcher::new(&guard_options(config)).context("outbound.ca_bundle")?;
        Ok(Pins { vault: self.records.clone(), guarded: Arc::new(guarded) })
    }

    /// What is known of callers, where backends are told of them.
    pub fn callers(&self) -> Arc<Callers> {
        let people = OfRecords::new(self.records.clone(), self.revocations.clone());
        Arc::new(Callers::new(Arc::new(people), self.signer.clone()))
    }

    /// What users have at other servers, where users log in here. Renewals are among `renewals`.
    ///
    /// # Errors
    ///
    /// If the authorities of the configuration can't be read.
    pub fn connections(
        &self,
        config: &Config,
        ring: &Arc<KeyRing>,
        renewals: &Tasks,
    ) -> anyhow::Result<Option<Arc<Connections>>> {
        let (Some(origin), Some(signer)) = (&self.origin, &self.signer) else { return Ok(None) };
        let (signer, id) = (signer.clone(), origin.join("/oauth/client-metadata.json"));
        let authorities = Authorities {
            pins: self.pins(config)?,
            ring: ring.clone(),
            state: self.shared.clone(),
            origin: origin.clone(),
            name: config.auth.name.clone(),
            assert: Some(Arc::new(move |audience| signer.assert(&id, audience, Utc::now()).ok())),
        };
        Ok(Some(Connections::new(authorities, renewals.clone())))
    }

    /// Looks after all of it until the gateway stops.
    pub fn tend(self: &Arc<Self>, tasks: &Tasks, connections: Option<&Arc<Connections>>) {
        if let Some(connections) = connections {
            tasks.spawn("hear of accounts", connections.clone().attend());
            let connections = connections.clone();
            tasks.spawn("seal anew", async move {
                loop {
                    match connections.seal_anew().await {
                        Ok(0) => {}
                        Ok(count) => tracing::info!(connections = count, "sealed with the first seal key"),
                        Err(error) => tracing::warn!("connections can't be sealed anew: {error}"),
                    }
                    tokio::time::sleep(TEND_EVERY).await;
                }
            });
        }
        self.revocations.tend(tasks);
        let this = self.clone();
        tasks.spawn("tend records", async move {
            while this.trouble().is_some() {
                tokio::time::sleep(RETRY_EVERY).await;
                if let Err(error) = this.prepare().await {
                    this.is_in_trouble(&format!("{error:#}"));
                }
            }
            this.tend_prepared().await;
        });
    }

    /// Writes down what was used.
    pub async fn close(&self) {
        self.verifier.flush_uses().await;
    }

    async fn tend_prepared(&self) {
        let mut swept = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(TEND_EVERY).await;
            self.verifier.flush_uses().await;
            if let Some(signer) = &self.signer
                && let Err(error) = signer.tend().await
            {
                tracing::warn!("signing keys can't be looked after: {error}");
            }
            if swept.elapsed() >= SWEEP_EVERY {
                swept = tokio::time::Instant::now();
                self.sweep().await;
            }
        }
    }

    async fn sweep(&self) {
        let now = Utc::now();
        let swept = async {
            let clients = self.records.forget_unused_clients(now - TimeDelta::days(7)).await?;
            Ok::<_, RecordsError>(clients + self.records.sweep(now).await?)
        };
        match swept.await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "forgot records that can matter to nobody any more"),
            Err(error) => tracing::warn!("old records can't be forgotten: {error}"),
        }
    }
}

/// An issuer whose tokens are accepted.
fn external(external: &External, fetcher: &Arc<Fetcher>, tasks: &Tasks) -> Issuer {
    let location = external.jwks_uri.clone().map_or(Location::Discovered, Location::Url);
    let is_accepted =
        |algorithm: &Algorithm| external.algorithms.iter().any(|named| *named == format!("{algorithm:?}"));
    Issuer {
        policy: Policy {
            issuer: external.issuer.clone(),
            algorithms: ALGORITHMS.into_iter().filter(is_accepted).collect(),
            types: external.types.clone(),
            audiences: external.audiences.clone(),
            clients: external.client_ids.clone(),
            max_lifetime: Some(external.max_lifetime.as_secs_f64()),
            groups_claim: external.groups_claim.clone(),
        },
        keys: Arc::new(Jwks::new(&external.issuer, location, fetcher.clone(), tasks.clone())),
        own: None,
        introspection: external.introspection.as_ref().map(|asked| {
            let secret = asked.client_secret.live();
            Introspection::new(asked.url.clone(), asked.client_id.clone(), secret, fetcher.clone())
        }),
    }
}

/// Whether trying again may help.
fn may_pass(error: &anyhow::Error) -> bool {
    let unavailable = |error: &RecordsError| matches!(error, RecordsError::Unavailable(_));
    let of_migration = error.downcast_ref::<MigrationError>().is_some_and(|error| match error {
        MigrationError::Records(error) => unavailable(error),
        _ => false,
    });
    of_migration || error.downcast_ref::<RecordsError>().is_some_and(unavailable)
}

/// Shows the first administrator's token on standard error, and nowhere else.
fn say_once(secret: &str) {
    use std::io::Write as _;
    let _ = writeln!(
        std::io::stderr(),
        "\nThere is no token for the admin API yet. This one works for 24 hours and is shown this once:\n\n    {secret}\n\n\
         Make others with it: DRAWBRIDGE_ADMIN_TOKEN=... drawbridge token create --help\n"
    );
}

fn policy(written: RegistrationPolicy) -> Registration {
    match written {
        RegistrationPolicy::Open => Registration::Open,
        RegistrationPolicy::Curated => Registration::Curated,
        RegistrationPolicy::Closed => Registration::Closed,
    }
}

fn options(config: &Config) -> Options {
    let auth = &config.auth;
    let delta = |time: Duration| TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
    Options {
        access_token_ttl: delta(auth.access_token_ttl),
        refresh_idle_ttl: delta(auth.refresh_idle_ttl),
        refresh_absolute_ttl: delta(auth.refresh_absolute_ttl),
        refresh_grace: delta(auth.refresh_grace),
        registration: policy(auth.registration),
        introspection_clients: auth
            .introspection_clients
            .iter()
            .map(|(id, secret)| (id.clone(), token::hash(secret.expose())))
            .collect(),
        client_documents: ClientDocumentOptions {
            policy: policy(auth.client_documents),
            hosts: auth.client_document_hosts.clone(),
        },
        redirect_uris: auth.redirect_uris.clone(),
        resource_name: auth.name.clone(),
        own_tokens: auth.own_tokens,
        allowed_groups: auth.login.as_ref().map(|login| login.allowed_groups.clone()).unwrap_or_default(),
    }
}
