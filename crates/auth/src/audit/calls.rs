//! Calls, on their way into the trail: whoever has answered one puts it into a queue and goes on; a task writes what is
//! there, many at a time. What does not fit is counted, and an entry says how many that were.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use drawbridge_core::Tasks;
use drawbridge_core::audit::{CallAudit, CallRecord};
use drawbridge_core::endpoint::DEFAULT;
use drawbridge_core::metrics;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::CALL;
use super::redact::Redactor;
use super::trail::{AuditTrail, Draft};
use crate::records::{RecordsError, Time};

/// How many calls one statement of the database is to write.
const BATCH: usize = 500;
/// How long a call waits for others to be written with.
const LINGER: Duration = Duration::from_millis(100);
/// How often it is looked whether a checkpoint is due.
const TICK: Duration = Duration::from_secs(1);
/// How soon a batch that could not be written is tried again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// What was said in calls that wait may take up this much memory.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// How calls are noted.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// How many may wait.
    pub queue: usize,
    /// What is said is noted too, up to this many bytes of each part.
    pub payload_limit: Option<usize>,
    /// What is taken out of it.
    pub redactor: Redactor,
}

/// Takes calls, and never waits.
pub struct CallLog {
    queue: mpsc::Sender<CallRecord>,
    payload_limit: Option<usize>,
    waiting_bytes: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    counted: Arc<metrics::Audit>,
}

impl CallLog {
    /// What takes calls, and what writes them into `trail`.
    pub fn new(trail: &Arc<AuditTrail>, options: CallOptions) -> (Arc<Self>, CallWriter) {
        // When it is full, whatever comes is counted and dropped: calls must not wait for the database.
        let (queue, waiting) = mpsc::channel(options.queue.max(1));
        let waiting_bytes = Arc::<AtomicUsize>::default();
        let log = Self {
            queue,
            payload_limit: options.payload_limit,
            waiting_bytes: waiting_bytes.clone(),
            lost: trail.lost().clone(),
            counted: trail.counted().clone(),
        };
        let writer = CallWriter { trail: trail.clone(), waiting, waiting_bytes, redactor: options.redactor };
        (Arc::new(log), writer)
    }
}

impl CallAudit for CallLog {
    fn note(&self, mut call: CallRecord) {
        let size = call.payload.as_ref().map_or(0, |payload| payload.size());
        if size > 0 && self.waiting_bytes.fetch_add(size, Ordering::Relaxed) + size > MAX_WAITING_BYTES {
            self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
            if let Some(payload) = &mut call.payload {
                payload.omit();
            }
        }
        if let Err(refused) = self.queue.try_send(call) {
            let size = refused.into_inner().payload.map_or(0, |payload| payload.size());
            self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::AcqRel);
            self.counted.lost.inc();
        }
    }

    fn payload_limit(&self) -> Option<usize> {
        self.payload_limit
    }

    fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

/// Writes calls down.
pub struct CallWriter {
    trail: Arc<AuditTrail>,
    waiting: mpsc::Receiver<CallRecord>,
    waiting_bytes: Arc<AtomicUsize>,
    redactor: Redactor,
}

impl CallWriter {
    /// Writes until the gateway drains; then what is left, and the end of the chain.
    pub async fn run(mut self, tasks: Tasks) {
        let mut calls = Vec::with_capacity(BATCH);
        while !tasks.is_draining() {
            tokio::select! {
                more = self.waiting.recv_many(&mut calls, BATCH) => {
                    if more == 0 {
                        break;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(LINGER) => {}
                        () = tasks.draining() => {}
                    }
                    self.write(&mut calls).await;
                }
                () = tokio::time::sleep(TICK) => self.mark().await,
                () = tasks.draining() => {}
            }
        }
        self.waiting.close();
        while self.waiting.recv_many(&mut calls, BATCH).await > 0 {
            self.write(&mut calls).await;
        }
        if let Err(error) = self.trail.close().await {
            tracing::warn!("the audit trail has no proper end: {error}");
        }
    }

    async fn mark(&self) {
        if let Err(error) = self.trail.mark().await {
            tracing::warn!("the audit trail can't be signed now: {error}");
        }
    }

    /// Writes these calls, and more that wait, if there is room among them.
    async fn write(&mut self, calls: &mut Vec<CallRecord>) {
        while calls.len() < BATCH {
            let Ok(call) = self.waiting.try_recv() else { break };
            calls.push(call);
        }
        let size: usize = calls.iter().filter_map(|call| call.payload.as_ref()).map(|said| said.size()).sum();
        let drafts: Vec<Draft> = calls.drain(..).map(|call| self.draft(call)).collect();
        self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
        self.write_until_done(&drafts).await;
    }

    async fn write_until_done(&self, drafts: &[Draft]) {
        let (mut retry, mut is_again) = (FIRST_RETRY, false);
        loop {
            match self.trail.append_calls(drafts, is_again).await {
                Ok(()) => {
                    if is_again {
                        tracing::info!("calls are written into the audit trail again");
                    }
                    return;
                }
                Err(RecordsError::Refused(why)) if is_again => {
                    tracing::error!("calls can't be written into the audit trail: {why}");
                    self.write_one_by_one(drafts).await;
                    return;
                }
                Err(error) => {
                    if !is_again {
                        tracing::warn!("calls wait to be written into the audit trail: {error}");
                    }
                    is_again = true;
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(LAST_RETRY);
                }
            }
        }
    }

    /// One that the database does not take must not keep the others out.
    async fn write_one_by_one(&self, drafts: &[Draft]) {
        for draft in drafts {
            if self.trail.append_calls(std::slice::from_ref(draft), false).await.is_err() {
                self.trail.lost().fetch_add(1, Ordering::AcqRel);
                self.trail.counted().lost.inc();
            }
        }
    }

    fn draft(&self, call: CallRecord) -> Draft {
        let mut detail = Map::new();
        let mut set = |name: &str, value: Value| {
            detail.insert(name.to_owned(), value);
        };
        let endpoint = call.endpoint.as_ref().map_or(DEFAULT, |name| name.as_str());
        set("endpoint", endpoint.into());
        if let Some(backend) = &call.backend {
            set("backend", backend.as_str().into());
        }
        if let Some(caller) = &call.caller {
            set("client", self.redactor.text(&caller.client).into());
            set("credential", caller.credential.as_str().into());
        }
        if let Some(request) = call.request {
            set("request", request.to_string().into());
        }
        set("era", call.era.as_str().into());
        set("duration_us", u64::try_from(call.took.as_micros()).unwrap_or(u64::MAX).into());
        if let Some(status) = call.status {
            set("status", status.into());
        }
        if call.streamed {
            set("stream", true.into());
        }
        if let Some(code) = call.code {
            set("rpc_code", code.into());
        }
        if let Some(fault) = call.fault {
            set("error", fault.into());
        }
        if let Some(payload) = &call.payload {
            set("payload", self.redactor.payload(payload));
        }
        Draft {
            at: Time::from(call.ended_at),
            // What another issuer calls its users may be anything.
            actor: call
                .caller
                .as_ref()
                .map_or_else(|| "anonymous".to_owned(), |caller| self.redactor.text(&caller.name)),
            action: format!("{CALL}{}", self.redactor.text(call.words.method())),
            target: self.redactor.text(call.words.name()),
            outcome: call.outcome.as_str().to_owned(),
            detail: Value::Object(detail),
        }
    }
}
