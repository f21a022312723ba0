//! The audit trail as it is written, swept and gone through, and what is found out about those who change it.

mod kept;
mod tampered;
mod written;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use drawbridge_auth::audit::{
    AuditEntry, AuditFilter, AuditKeys, AuditStore, AuditTrail, Event, Report, Swept, Trust, Verify, sweep,
    verify,
};
use drawbridge_core::metrics;
use drawbridge_core::seal::{KeyRing, SealKey};
use serde_json::json;
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, raw_sql};

use crate::fixture::Fixture;

/// Checkpoints only where a chain begins and ends.
const SELDOM: Duration = Duration::from_secs(3600);

pub(crate) fn ring(keys: &[(&str, u8)]) -> Arc<KeyRing> {
    let keys: Vec<SealKey> =
        keys.iter().map(|(id, fill)| SealKey { id: (*id).to_owned(), secret: [*fill; 32] }).collect();
    Arc::new(KeyRing::new(&keys).unwrap())
}

/// A trail in a database.
pub(crate) struct World {
    pub(crate) f: Fixture,
    pub(crate) ring: Arc<KeyRing>,
    pub(crate) counted: Arc<metrics::Audit>,
}

impl World {
    pub(crate) fn over(f: Fixture) -> Self {
        Self { f, ring: ring(&[("k1", 1)]), counted: Arc::default() }
    }

    pub(crate) fn store(&self) -> &dyn AuditStore {
        &*self.f.a
    }

    pub(crate) fn keys(&self) -> Arc<AuditKeys> {
        Arc::new(AuditKeys::new(self.f.a.clone(), self.ring.clone()))
    }

    /// The trail of a new run.
    pub(crate) fn trail(&self, interval: Duration) -> Arc<AuditTrail> {
        let (keys, counted) = (self.keys(), self.counted.clone());
        Arc::new(AuditTrail::signed(self.f.a.clone(), keys, "one", interval, counted))
    }

    /// A whole run with so many actions. Its chain has two entries more.
    pub(crate) async fn run(&self, count: usize, interval: Duration) -> String {
        let trail = self.trail(interval);
        trail.open().await.unwrap();
        let chain = trail.chain().await;
        for number in 0..count {
            act(&trail, &format!("token:{number}")).await.unwrap();
        }
        trail.close().await.unwrap();
        chain
    }

    pub(crate) async fn report(&self) -> Report {
        self.report_by(Verify { trust: self.trust(&[]).await, ..Verify::default() }).await
    }

    pub(crate) async fn trust(&self, named: &[String]) -> Trust {
        Trust::of(&self.store().audit_keys().await.unwrap(), Some(&self.ring), named)
    }

    pub(crate) async fn report_by(&self, by: Verify) -> Report {
        verify(self.store(), &by).await.unwrap()
    }

    /// What is wrong, in words.
    pub(crate) async fn faults(&self) -> Vec<String> {
        self.report().await.findings.iter().map(ToString::to_string).collect()
    }

    pub(crate) async fn entries(&self, chain: &str) -> Vec<AuditEntry> {
        self.store().audit_chain(chain, 0, 500).await.unwrap()
    }

    pub(crate) async fn all(&self) -> Vec<AuditEntry> {
        self.store().audit(&AuditFilter::default(), None, 500).await.unwrap().items
    }

    pub(crate) async fn sweep(&self, before: DateTime<Utc>, own: &str) -> Swept {
        sweep(self.store(), &self.keys(), before, own, &self.counted).await.unwrap()
    }

    /// Does something to the database behind everybody's back.
    pub(crate) async fn sql(&self, text: &str) {
        sqlx::any::install_default_drivers();
        let url = match self.f.url.strip_prefix("sqlite:") {
            Some(path) => format!("sqlite://{path}"),
            None => self.f.url.clone(),
        };
        let mut connection = AnyConnection::connect(&url).await.unwrap();
        raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

pub(crate) async fn act(trail: &AuditTrail, target: &str) -> drawbridge_auth::records::Result<()> {
    let event = Event {
        actor: "token:admin",
        action: "token.create",
        target,
        outcome: "ok",
        detail: json!({ "name": "laptop", "n": 1 }),
    };
    trail.append(&[event]).await
}

/// A test over each database that others can reach into.
macro_rules! over_both {
    ($($test:ident),+ $(,)?) => {
        mod file {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::World::over(crate::fixture::Fixture::file().await)).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::World::over(crate::fixture::Fixture::postgres().await)).await;
            })+
        }
    };
}
pub(crate) use over_both;
