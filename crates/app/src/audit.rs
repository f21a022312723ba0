//! The audit trail of a gateway: opened where there is a database, written and swept while it runs, ended with it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use chrono::{TimeDelta, Utc};
use drawbridge_auth::audit::{AuditKeys, AuditTrail, CallLog, CallOptions, CallWriter, Redactor, sweep};
use drawbridge_core::audit::CallAudit;
use drawbridge_core::metrics::Metrics;
use drawbridge_core::seal::KeyRing;
use drawbridge_core::{Tasks, metrics};
use drawbridge_sql::{SqlOptions, SqlRecords};
use parking_lot::Mutex;

use crate::access::database_url;
use crate::config::{AuthMode, Config};

/// How soon a database that was away is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// How often keys are looked after and old entries are forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// The trail, and what belongs to it.
pub struct Audit {
    /// Where it is.
    pub records: Arc<SqlRecords>,
    /// What is written into it.
    pub trail: Arc<AuditTrail>,
    keys: Arc<AuditKeys>,
    log: Arc<CallLog>,
    notes_calls: bool,
    writer: Mutex<Option<CallWriter>>,
    retention: Option<Duration>,
    counted: Arc<metrics::Audit>,
    tasks: Tasks,
}

impl Audit {
    /// The trail that the configuration asks for; `None` where there is no database.
    ///
    /// # Errors
    ///
    /// If the database can't be used. One that is away may come back.
    pub fn open(
        config: &Config,
        ring: &Arc<KeyRing>,
        metrics: &Metrics,
    ) -> anyhow::Result<Option<Arc<Self>>> {
        if config.auth.mode == AuthMode::None && config.database.is_none() {
            return Ok(None);
        }
        let records = SqlRecords::open(&database_url(config), &SqlOptions::default()).context("database")?;
        let records = Arc::new(records);
        let keys = Arc::new(AuditKeys::new(records.clone(), ring.clone()));
        let counted = metrics.audit.clone();
        let instance = config.instance_id.clone().unwrap_or_else(|| format!("pid-{}", std::process::id()));
        let audit = &config.audit;
        let trail = Arc::new(AuditTrail::signed(
            records.clone(),
            keys.clone(),
            &instance,
            audit.checkpoint_interval,
            counted.clone(),
        ));
        let redactor =
            Redactor::new(&audit.redact).map_err(|(_, why)| anyhow::anyhow!("audit.redact: {why}"))?;
        let payload_limit = audit.payloads.then_some(audit.max_payload_bytes);
        let (log, writer) = CallLog::new(&trail, CallOptions { queue: audit.queue, payload_limit, redactor });
        Ok(Some(Arc::new(Self {
            records,
            trail,
            keys,
            log,
            notes_calls: audit.calls,
            writer: Mutex::new(Some(writer)),
            retention: audit.retention,
            counted,
            tasks: Tasks::default(),
        })))
    }

    /// Takes notes of calls, if that is wanted.
    pub fn calls(&self) -> Option<Arc<dyn CallAudit>> {
        let log: Arc<dyn CallAudit> = self.log.clone();
        self.notes_calls.then_some(log)
    }

    /// Writes and sweeps until it is closed.
    pub fn start(self: &Arc<Self>) {
        if let Some(writer) = self.writer.lock().take() {
            self.tasks.spawn("write audit trail", writer.run(self.tasks.clone()));
        }
        let this = self.clone();
        self.tasks.spawn("tend audit trail", async move {
            let tasks = this.tasks.clone();
            tokio::select! {
                () = this.tend() => {}
                () = tasks.draining() => {}
            }
        });
    }

    async fn tend(&self) {
        let mut is_away = false;
        while let Err(error) = self.begin().await {
            if !std::mem::replace(&mut is_away, true) {
                tracing::warn!("the audit trail can't be begun yet; it is tried again: {error:#}");
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
        loop {
            self.sweep().await;
            tokio::time::sleep(SWEEP_EVERY).await;
            if let Err(error) = self.keys.tend().await {
                tracing::warn!("the keys of the audit trail can't be looked after: {error}");
            }
        }
    }

    /// The first entry says that there is a run, whatever comes of it.
    async fn begin(&self) -> anyhow::Result<()> {
        self.records.migrate().await?;
        self.keys.tend().await?;
        Ok(self.trail.open().await?)
    }

    async fn sweep(&self) {
        let Some(kept) = self.retention.and_then(|kept| TimeDelta::from_std(kept).ok()) else { return };
        let own = self.trail.chain().await;
        let swept = sweep(&*self.records, &self.keys, Utc::now() - kept, &own, &self.counted).await;
        match swept {
            Ok(swept) if swept.rows == 0 => {}
            Ok(swept) => {
                tracing::info!(rows = swept.rows, "forgot entries of the audit trail that were too old")
            }
            Err(error) => tracing::warn!("old entries of the audit trail can't be forgotten: {error}"),
        }
    }

    /// Writes what waits and ends the chain, within this time; then lets go of the database.
    pub async fn close(&self, grace: Duration) {
        if !self.tasks.finish(grace).await {
            tracing::warn!("the audit trail has no proper end: what waited could not be written in time");
        }
        self.records.close().await;
    }
}
