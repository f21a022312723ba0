//! What may be revoked, how that is told, and who is to hear of it.
//!
//! The database is the authority: what is revoked is written there first. Instances hear of it by the log that they
//! share, in a moment; an instance that can't hear the log reads the database instead, every [`READ_EVERY`], and one that
//! can does so a little less often, for what was revoked in the database alone. So what was revoked is refused everywhere
//! within a second, and whether that is so is known ([`Revocations::is_current`]).
//! The check itself is a look-up in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chrono::Utc;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::state::Unavailable;
use drawbridge_core::{Tasks, revocation};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::records::{Records, RecordsError, Revocation, Time, Token};
use crate::signing::MAX_LIFETIME;

/// How often the database is read while the log can't be heard.
pub const READ_EVERY: Duration = Duration::from_millis(300);
/// And while it is heard: who works on the database itself tells the log nothing.
const READ_BESIDE_EVERY: Duration = Duration::from_millis(500);
/// A database that was not read for so long is away.
const AWAY: Duration = Duration::from_secs(5);
/// What was read is current for so long.
const CURRENT: Duration = Duration::from_secs(1);
/// Clocks of instances may differ by this much, so that more is read again than seems needed.
const SKEW: chrono::Duration = chrono::Duration::minutes(10);

/// Names something that can be revoked: a token, a grant, or all that was given to a user. Sixteen bytes of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RevocationKey(pub [u8; 16]);

impl RevocationKey {
    /// What was true of a token at this version.
    pub fn token(id: &str, version: i64) -> Self {
        Self::of("token", id, version)
    }

    /// A grant.
    pub fn grant(id: &str) -> Self {
        Self::of("grant", id, 0)
    }

    /// What was true of a user at this version.
    pub fn user(id: &str, version: i64) -> Self {
        Self::of("user", id, version)
    }

    /// What was true of a token that was revoked, as it was before. Revoking has counted its version up.
    pub fn of_revoked(before: &Token) -> Self {
        let version = if before.revoked_at.is_some() { before.version - 1 } else { before.version };
        Self::token(&before.id, version)
    }

    /// What a client that the configuration names was given at this version.
    pub fn client(id: &str, version: i64) -> Self {
        Self::of("client", id, version)
    }

    fn of(kind: &str, id: &str, version: i64) -> Self {
        let mut hash = Sha256::new();
        for part in [kind.as_bytes(), id.as_bytes(), &version.to_be_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hash.finalize()[..16]);
        Self(key)
    }
}

impl RevocationKey {
    /// Reads what is shown of a key.
    pub fn parse(text: &str) -> Option<Self> {
        SessionKey::parse(text).map(|key| Self(key.0))
    }
}

impl std::fmt::Display for RevocationKey {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        SessionKey(self.0).fmt(f)
    }
}

impl From<RevocationKey> for SessionKey {
    /// The log names all that it has in one way.
    fn from(key: RevocationKey) -> Self {
        Self(key.0)
    }
}

/// Whether others know of a revocation already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Told {
    /// The log has it.
    Everyone,
    /// They read it in the database within a second.
    Later,
}

/// The revocations as one instance knows them.
pub struct Revocations {
    records: Arc<dyn Records>,
    log: Arc<dyn revocation::Revocations>,
    /// What the database said, and until when.
    read: RwLock<HashMap<RevocationKey, Time, ahash::RandomState>>,
    /// What the configuration of this instance no longer has, and until when anybody could come with it.
    left_out: RwLock<HashMap<RevocationKey, Time, ahash::RandomState>>,
    begun: Instant,
    /// When the database was last read, in milliseconds since the begin plus one.
    read_at: AtomicU64,
    has_read_all: AtomicBool,
    watched: Mutex<Watched>,
}

/// Those who are to hear of the end of something.
#[derive(Default)]
struct Watched {
    number: u64,
    by_key: HashMap<RevocationKey, HashMap<u64, CancellationToken>, ahash::RandomState>,
}

impl std::fmt::Debug for Revocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Revocations").field("read", &self.read.read().len()).finish_non_exhaustive()
    }
}

impl Revocations {
    /// Revocations that are kept in `records` and told by `log`. [Tend](Self::tend) them.
    pub fn new(records: Arc<dyn Records>, log: Arc<dyn revocation::Revocations>) -> Arc<Self> {
        Arc::new(Self {
            records,
            log,
            read: RwLock::default(),
            left_out: RwLock::default(),
            begun: Instant::now(),
            read_at: AtomicU64::new(0),
            has_read_all: AtomicBool::new(false),
            watched: Mutex::default(),
        })
    }

    /// Whether it was revoked.
    pub fn is_revoked(&self, key: &RevocationKey) -> bool {
        self.read.read().contains_key(key)
            || self.log.is_revoked(&(*key).into())
            || self.left_out.read().contains_key(key)
    }

    /// What `gone` names is no longer good at this instance, and what `there` names is: so its configuration says, and each
    /// instance has its own.
    pub fn set_left_out(&self, gone: &[RevocationKey], there: &[RevocationKey], now: Time) {
        let mut left_out = self.left_out.write();
        left_out.extend(gone.iter().map(|key| (*key, now + MAX_LIFETIME)));
        left_out.retain(|key, until| *until > now && !there.contains(key));
        drop(left_out);
        gone.iter().for_each(|key| self.end(key));
    }

    /// Whether all that was revoked up to a second ago is known here.
    pub fn is_current(&self) -> bool {
        self.has_read_all.load(Ordering::Acquire) && (self.log.is_current() || self.was_read_within(CURRENT))
    }

    /// Whether the database can be read: it is, every half second.
    pub fn is_database_up(&self) -> bool {
        self.was_read_within(AWAY)
    }

    fn was_read_within(&self, time: Duration) -> bool {
        let at = self.read_at.load(Ordering::Acquire);
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        at > 0 && u128::from(now.saturating_sub(at - 1)) <= time.as_millis()
    }

    /// Revokes all of `revocations`: in the database, here, and at the other instances.
    ///
    /// # Errors
    ///
    /// If the database did not take them. Then nothing is revoked.
    pub async fn revoke(&self, revocations: &[Revocation]) -> Result<Told, RecordsError> {
        let now = Utc::now();
        self.records.add_revocations(revocations, now).await?;
        self.enter(revocations);
        let mut told = Told::Everyone;
        for revocation in revocations {
            let left = (revocation.until - now).to_std().unwrap_or_default();
            if let Err(Unavailable(why)) = self.log.revoke(revocation.key.into(), left).await {
                tracing::warn!("other instances read of a revocation in the database: {why}");
                told = Told::Later;
            }
        }
        Ok(told)
    }

    fn enter(&self, revocations: &[Revocation]) {
        let mut read = self.read.write();
        for Revocation { key, until } in revocations {
            let known = read.entry(*key).or_insert(*until);
            *known = (*known).max(*until);
        }
        drop(read);
        revocations.iter().for_each(|revocation| self.end(&revocation.key));
    }

    /// Tells those who watch `key`.
    fn end(&self, key: &RevocationKey) {
        let ended = self.watched.lock().by_key.remove(key);
        ended.into_iter().flat_map(HashMap::into_values).for_each(|token| token.cancel());
    }

    /// Tells all whose keys were revoked.
    fn end_revoked(&self) {
        let keys: Vec<RevocationKey> = self.watched.lock().by_key.keys().copied().collect();
        keys.iter().filter(|key| self.is_revoked(key)).for_each(|key| self.end(key));
    }

    /// Hears of the end of any of `keys`, also if that was before.
    pub fn watch(self: &Arc<Self>, keys: &[RevocationKey]) -> Watch {
        let ended = CancellationToken::new();
        let number = {
            let mut watched = self.watched.lock();
            watched.number += 1;
            let number = watched.number;
            for key in keys {
                watched.by_key.entry(*key).or_default().insert(number, ended.clone());
            }
            number
        };
        if keys.iter().any(|key| self.is_revoked(key)) {
            ended.cancel();
        }
        Watch { revocations: self.clone(), keys: keys.into(), number, ended }
    }

    /// Reads the database, all of it the first time.
    ///
    /// # Errors
    ///
    /// If that was not possible.
    pub async fn read(&self) -> Result<(), RecordsError> {
        let now = Utc::now();
        let since = self.has_read_all.load(Ordering::Acquire).then(|| now - SKEW);
        let begun = self.begun.elapsed();
        let revocations = self.records.revocations(since, now).await?;
        let new: Vec<Revocation> = {
            let read = self.read.read();
            revocations.into_iter().filter(|one| !read.contains_key(&one.key)).collect()
        };
        self.enter(&new);
        // What was revoked while it was read may not be in it.
        self.read_at.store(u64::try_from(begun.as_millis()).unwrap_or(u64::MAX) + 1, Ordering::Release);
        self.has_read_all.store(true, Ordering::Release);
        Ok(())
    }

    fn forget(&self) {
        let now = Utc::now();
        self.read.write().retain(|_, until| *until > now);
    }

    /// Reads what others revoke, until the gateway drains.
    pub fn tend(self: &Arc<Self>, tasks: &Tasks) {
        let (this, leaving) = (self.clone(), tasks.clone());
        tasks.spawn("hear revocations", async move {
            let mut heard = this.log.follow();
            loop {
                tokio::select! {
                    key = heard.recv() => match key {
                        Ok(key) => this.end(&RevocationKey(key.0)),
                        Err(RecvError::Lagged(_)) => this.end_revoked(),
                        Err(RecvError::Closed) => return,
                    },
                    () = leaving.stop_token().cancelled() => return,
                }
            }
        });
        let (this, leaving) = (self.clone(), tasks.clone());
        tasks.spawn("read revocations", async move {
            let (mut was_deaf, mut is_away) = (false, false);
            loop {
                let is_deaf = !this.log.is_current();
                // Once more after the log is heard again: what was lost with it is only in the database.
                let needed = is_deaf || was_deaf || !this.has_read_all.load(Ordering::Acquire);
                if needed || !this.was_read_within(READ_BESIDE_EVERY) {
                    match this.read().await {
                        Ok(()) => {
                            was_deaf = is_deaf;
                            if std::mem::take(&mut is_away) {
                                tracing::info!("revocations can be read again");
                            }
                        }
                        Err(why) => {
                            was_deaf = true;
                            // Once, and not each time that it is tried.
                            if !std::mem::replace(&mut is_away, true) {
                                tracing::warn!("revocations can't be read: {why}");
                            }
                        }
                    }
                    this.forget();
                }
                tokio::select! {
                    () = tokio::time::sleep(READ_EVERY) => {}
                    () = leaving.stop_token().cancelled() => return,
                }
            }
        });
    }
}

/// Hears of the end of something for as long as it is kept.
#[derive(Debug)]
pub struct Watch {
    revocations: Arc<Revocations>,
    keys: Box<[RevocationKey]>,
    number: u64,
    ended: CancellationToken,
}

impl Watch {
    /// Cancelled when any of the keys is revoked.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.revocations.watched.lock();
        for key in &self.keys {
            if let Some(of_key) = watched.by_key.get_mut(key) {
                of_key.remove(&self.number);
                if of_key.is_empty() {
                    watched.by_key.remove(key);
                }
            }
        }
    }
}
