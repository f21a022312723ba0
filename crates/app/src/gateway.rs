//! A running gateway: started with a configuration, ended in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use drawbridge_admin::metrics::Exporter;
use drawbridge_core::metrics::{Gauges, Metrics};
use drawbridge_core::seal::{KeyRing, SealKey};
use drawbridge_core::{Tasks, worker};
use drawbridge_upstream::process::GuardCommand;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::access::{Access, EndpointNames};
use crate::audit::Audit;
use crate::config::{self, FileRead, Inputs, Loaded};
use crate::listener::{Admission, Workers, bind};
use crate::open_files::OpenFiles;
use crate::overview::Overview;
use crate::reload::{self, Status};
use crate::seal_key;
use crate::shared_state::Store;
use crate::telemetry::otlp;
use crate::wiring::{Doors, Records, Wired, Work, collector_options, wire};

/// How often calls are looked for whose clients took too long to answer.
const TICK: Duration = Duration::from_secs(1);
/// Every so many ticks all other forgotten things are looked for.
const SWEEP_TICKS: u64 = 5;
/// What the audit trail gets to end in order, if the calls have left nothing of the deadline.
const AUDIT_TIME: Duration = Duration::from_secs(5);
/// What backends get to end in order, after their calls have.
const BACKEND_TIME: Duration = Duration::from_secs(15);

/// A gateway that serves.
pub struct Gateway {
    /// The bound address of the public listener.
    pub public: SocketAddr,
    /// The bound address of the operators' listener.
    pub admin: SocketAddr,
    /// The bound address of the probes' own listener, if there is one.
    pub probes: Option<SocketAddr>,
    status: Status,
    work: Work,
    /// The listeners of probes, which answer until all else has ended.
    operators: Tasks,
    /// What goes to the collector of traces, until all calls have ended.
    traces: Tasks,
    wired: Arc<Wired>,
    store: Store,
    access: Option<Arc<Access>>,
    audit: Option<Arc<Audit>>,
    workers: Option<(Arc<Workers>, JoinHandle<()>)>,
}

impl Gateway {
    /// Starts a gateway on the current runtime and one more per core. `guard` starts stdio backends.
    ///
    /// # Errors
    ///
    /// If an address is taken, the seal key can't be kept, or a part can't be made.
    pub async fn start(
        loaded: Loaded,
        keys: Option<Vec<SealKey>>,
        guard: &GuardCommand,
    ) -> anyhow::Result<Self> {
        let Loaded { config, files, written, .. } = loaded;
        let keys = match keys {
            Some(keys) => keys,
            None if config.seal_keys.is_empty() => vec![seal_key::of_directory(&config.data_dir)?],
            None => {
                let own = |key: &config::SealKey| SealKey { id: key.id.clone(), secret: *key.key() };
                config.seal_keys.iter().map(own).collect()
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // This runtime does background work, so it is the last of those that speak to backends.
        worker::enter(cores);
        let work = Work::default();
        let open_files = OpenFiles::raise();
        let guard = guard.clone().with_open_files(open_files.inherited);
        let public = bind(config.public.listen, "public.listen")?;
        let admin = bind(config.admin.listen, "admin.listen")?;
        let probes = config.admin.probes.map(|address| bind(address, "admin.probes")).transpose()?;
        let metrics = Arc::<Metrics>::default();
        let (store, state) = Store::open(&config, &metrics, &work.fleet)?;
        let traces = Tasks::default();
        let tracer = config.otlp.as_ref().map(|otlp| {
            let outbound = collector_options(&config);
            otlp::start(otlp, &outbound, &traces)
        });
        let ring = Arc::new(KeyRing::new(&keys)?);
        let gateway_public = public.local_addr()?;
        let audit = Audit::open(&config, &ring, &metrics)?;
        let access = match &audit {
            Some(audit) => Access::open(&config, gateway_public, &state, &ring, audit, &work.fleet).await?,
            None => None,
        };
        let calls = audit.as_ref().and_then(|audit| audit.calls());
        let records = Records { metrics: metrics.clone(), tracer: tracer.transpose()?, audit: calls };
        let mut doors = Doors {
            keys: ring.clone(),
            gate: None,
            others: None,
            names: EndpointNames::default(),
            connections: None,
            clients: None,
            pins: None,
            callers: None,
        };
        if let Some(access) = &access {
            doors.gate = Some(access.gate());
            doors.pins = Some(access.pins(&config)?);
            doors.callers = Some(access.callers());
            doors.clients = Some(access.clients().clone());
            doors.connections = access.connections(&config, &ring, &work.backends)?;
            doors.others = Some(access.router(&config, &ring, &doors.names, doors.connections.clone())?);
            access.tend(&work.fleet, doors.connections.as_ref());
        }
        if let Some(audit) = &audit {
            audit.start();
        }
        let connections = doors.connections.clone();
        let wired = Arc::new(wire(&config, state, records, doors, &guard, cores + 1, &work)?);
        let workers = Arc::new(Workers::start(cores, &wired.front, &work)?);
        let accepting = {
            let (workers, tasks) = (workers.clone(), work.clients.clone());
            let listener = TcpListener::from_std(public)?;
            let enough_for = open_files.connections();
            if enough_for < config.limits.max_connections {
                tracing::info!(
                    open_files = open_files.limit,
                    connections = enough_for,
                    "this process may open too few files for limits.max_connections; allow it more (ulimit -n, \
                     LimitNOFILE of systemd, --ulimit nofile of Docker), or lower limits.max_connections"
                );
            }
            let admission = Admission { front: wired.front.clone(), metrics };
            tokio_task(async move { workers.accept(listener, &admission, &tasks).await })
        };
        let mut gateway = Self {
            public: gateway_public,
            admin: admin.local_addr()?,
            probes: None,
            status: Status::new(&files, written),
            work,
            operators: Tasks::default(),
            traces,
            wired,
            store,
            access,
            audit,
            workers: Some((workers, accepting)),
        };
        gateway.wired.metrics.configuration.is_applied();
        let status = gateway.status.clone();
        let for_operators = drawbridge_admin::config::routes(Arc::new(move || status.read()));
        let name = config.instance_id.unwrap_or_else(|| format!("pid-{}", std::process::id()));
        let api = match &gateway.access {
            Some(access) => {
                let origin = access.origin().cloned();
                let status = gateway.status.clone();
                let overview =
                    Overview::new(gateway.wired.clone(), name.clone(), origin, connections, status);
                access.admin_api(overview)
            }
            None => drawbridge_admin::api::absent(),
        };
        gateway.serve_probes(admin, for_operators.merge(api))?;
        if let Some(listener) = probes {
            gateway.probes = Some(listener.local_addr()?);
            gateway.serve_probes(listener, Router::new())?;
        }
        gateway.sweep_now_and_then();
        tracing::info!(instance.id = name, public = %gateway.public, admin = %gateway.admin, "started");
        Ok(gateway)
    }

    fn serve_probes(&self, listener: std::net::TcpListener, more: Router) -> anyhow::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let wired = self.wired.clone();
        let revocations = self.access.as_ref().map(|access| access.revocations.clone());
        let gauges = move || Gauges {
            database_up: revocations.as_ref().map(|known| known.is_database_up()),
            revocations_current: revocations.as_ref().map(|known| known.is_current()),
            ..wired.gauges()
        };
        let exporter = Exporter::new(self.wired.metrics.clone(), Arc::new(gauges));
        let routes = drawbridge_admin::probes(self.work.clients.clone(), self.reasons());
        let routes = routes.merge(exporter.routes()).merge(more);
        let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
        // Probes are answered while the gateway drains, so that its not being ready can be seen.
        self.operators.spawn("probes", async move {
            let served = axum::serve(listener, routes).await;
            if let Err(e) = served {
                tracing::error!("the operators' listener failed: {e}");
            }
        });
        Ok(())
    }

    /// What keeps this instance from being sent requests: it has not met the others yet, or does not know which sessions
    /// were ended. Once it has and does, it goes on without them.
    fn reasons(&self) -> drawbridge_admin::Reasons {
        let (store, wired, access) = (self.store.clone(), self.wired.clone(), self.access.clone());
        Arc::new(move || {
            let missing = match store.knows_what_was_ended() {
                true if wired.peers.has_announced() && wired.front.is_attending() => None,
                true => Some("not known to the other instances yet"),
                false => Some("does not know yet which sessions were ended"),
            };
            let why = |missing: &str| store.trouble().unwrap_or_else(|| missing.to_owned());
            let access = access.as_ref().and_then(|access| access.trouble());
            missing.map(why).into_iter().chain(access).collect()
        })
    }

    fn sweep_now_and_then(&self) {
        let (wired, store, tasks) = (self.wired.clone(), self.store.clone(), self.work.clients.clone());
        self.work.clients.spawn("sweep", async move {
            for tick in 1u64.. {
                tokio::select! {
                    () = tokio::time::sleep(TICK) => {}
                    () = tasks.draining() => return,
                }
                wired.front.sweep_rounds();
                store.observe(&wired.metrics);
                if !tick.is_multiple_of(SWEEP_TICKS) {
                    continue;
                }
                wired.front.sweep();
                wired.events.sweep();
                store.sweep();
            }
        });
    }

    /// Reads the configuration anew when it changes, or on SIGHUP, until the gateway drains. `files` are what it was
    /// read from for the start.
    pub fn follow(&self, inputs: Inputs, files: Vec<FileRead>) {
        reload::follow(inputs, files, &self.wired, &self.status, &self.work.clients);
    }

    /// How many sessions and streams this instance has.
    pub fn load(&self) -> (usize, usize) {
        self.wired.front.load()
    }

    /// Stops taking requests, lets running calls finish within the configured deadline, and ends all that the
    /// gateway started. `hurry` cuts the waiting short. Returns whether every call has finished.
    pub async fn stop(mut self, hurry: impl Future<Output = ()>) -> bool {
        let config::Drain { delay, deadline } = self.wired.drain();
        tracing::info!(
            drain.delay_secs = delay.as_secs(),
            drain.deadline_secs = deadline.as_secs(),
            "draining"
        );
        let mut hurry = std::pin::pin!(hurry);
        self.work.clients.begin_leaving();
        // Balancers look at the readiness now and then, and send requests here until they have.
        let mut hurried = tokio::select! {
            () = tokio::time::sleep(delay) => false,
            () = hurry.as_mut() => true,
        };
        self.work.clients.begin_drain();
        self.work.backends.begin_drain();
        let mut finished = false;
        let until = Instant::now() + deadline;
        if !hurried {
            let all = async {
                let finished = self.work.clients.finish(deadline).await;
                let left = || until.saturating_duration_since(Instant::now());
                self.wired.front.finish(left()).await;
                // Calls of other instances' clients that run here.
                self.wired.peers.finish(left()).await && finished
            };
            tokio::select! {
                ended = all => finished = ended,
                () = hurry.as_mut() => hurried = true,
            }
        }
        if hurried {
            // Not only cancelled: whoever waits for all of them has to hear that no more will come.
            self.work.clients.finish(Duration::ZERO).await;
        }
        self.wired.front.close().await;
        let backends = self.wired.backends();
        let closing = backends.iter().map(|backend| backend.close());
        let _ = tokio::time::timeout(BACKEND_TIME, futures_util::future::join_all(closing)).await;
        self.work.backends.finish(BACKEND_TIME).await;
        self.wired.peers.leave().await;
        self.store.close();
        self.work.fleet.finish(Duration::ZERO).await;
        if let Some(access) = &self.access {
            access.close().await;
        }
        if let Some(audit) = &self.audit {
            audit.close(until.saturating_duration_since(Instant::now()).max(AUDIT_TIME)).await;
        }
        self.traces.finish(otlp::FAREWELL).await;
        self.operators.finish(Duration::ZERO).await;
        if let Some((workers, accepting)) = self.workers.take() {
            let _ = accepting.await;
            if let Some(workers) = Arc::into_inner(workers) {
                let _ = tokio::task::spawn_blocking(move || workers.join()).await;
            }
        }
        tracing::info!(all_calls_finished = finished, "stopped");
        finished
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the accept loop outlives the task trackers, which wait for connections"
)]
fn tokio_task(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(work)
}
