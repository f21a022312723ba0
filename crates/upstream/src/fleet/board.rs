//! What clients with sessions have set at a backend that keeps nothing, as all instances know it.
//!
//! One value per session in shared state, read once by each instance that serves the session, and told to all when it
//! changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::relay::{frame, unframe};
use drawbridge_core::state::{Heard, Unavailable};
use drawbridge_core::{Fault, Tasks};
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Home;
use crate::options::Options;
use crate::standing::Standing;

/// What a session has set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The log level, a JSON string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<String>,
    /// Resources that were subscribed to.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) uris: BTreeSet<String>,
}

/// A value that was overtaken so often is given up.
const TRIES: usize = 16;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Serialize, Deserialize)]
struct Word {
    key: String,
    settings: Settings,
}

/// The sessions of this instance that want to hear what was set.
pub(crate) struct Board {
    options: Options,
    sessions: Mutex<HashMap<SessionKey, Weak<Standing>>>,
    /// Ends the hearing with the board.
    _heard: DropGuard,
}

impl Board {
    pub(crate) fn new(options: &Options, tasks: &Tasks) -> Arc<Self> {
        let ended = CancellationToken::new();
        let (sessions, heard) = (Mutex::default(), ended.clone().drop_guard());
        let board = Arc::new(Self { options: options.clone(), sessions, _heard: heard });
        if options.peers.state().is_fleet {
            let hearing = hear(Arc::downgrade(&board), tasks.clone());
            options.peers.spawn("hear of settings", hearing.with_cancellation_token_owned(ended).map(drop));
        }
        board
    }

    /// Lets a session hear.
    pub(crate) fn enter(&self, home: &Home, standing: &Arc<Standing>) {
        let mut sessions = self.sessions.lock();
        if sessions.len() == sessions.capacity() {
            sessions.retain(|_, standing| standing.strong_count() > 0);
        }
        sessions.insert(home.key(), Arc::downgrade(standing));
    }

    fn topic(&self) -> String {
        format!("settings:{}", self.options.name)
    }

    fn field(&self) -> String {
        format!("settings:{}", self.options.name)
    }

    /// What a session has set.
    pub(crate) async fn read(&self, home: &Home) -> Result<Settings, Unavailable> {
        let value = home.get(&self.field()).await?;
        Ok(value.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
    }

    /// Changes what a session has set, for all instances.
    pub(crate) async fn change(
        &self,
        home: &Home,
        change: impl Fn(&mut Settings),
    ) -> Result<Settings, Fault> {
        let field = self.field();
        for _ in 0..TRIES {
            let old = home.get(&field).await?;
            let mut settings: Settings =
                old.as_ref().and_then(|old| serde_json::from_slice(old).ok()).unwrap_or_default();
            change(&mut settings);
            let new = Bytes::from(serde_json::to_vec(&settings).unwrap_or_default());
            if home.put(&field, old.as_ref(), new.clone()).await? != new {
                continue;
            }
            let word = Word { key: home.key().to_string(), settings: settings.clone() };
            home.peers().state().bus.publish(&self.topic(), frame(&word, b"")).await?;
            return Ok(settings);
        }
        Err(Fault::StateUnavailable {
            detail: "the session is changed by too many requests at once".to_owned(),
        })
    }
}

async fn hear(board: Weak<Board>, tasks: Tasks) {
    loop {
        let Some(here) = board.upgrade() else { return };
        let (bus, topic) = (here.options.peers.state().bus.clone(), here.topic());
        drop(here);
        if let Ok(mut words) = bus.subscribe(&topic).await {
            while let Some(heard) = words.next().await {
                let Some(board) = board.upgrade() else { return };
                match heard {
                    Heard::Message(text) => {
                        let Some((Word { key, settings }, _)) = unframe(&text) else { continue };
                        let known = SessionKey::parse(&key)
                            .and_then(|key| board.sessions.lock().get(&key).and_then(Weak::upgrade));
                        if let Some(standing) = known {
                            standing.apply(settings);
                        }
                    }
                    Heard::Missed => {
                        let all: Vec<_> = board.sessions.lock().values().filter_map(Weak::upgrade).collect();
                        tasks.spawn("read settings", async move {
                            for standing in all {
                                standing.load_again().await;
                            }
                        });
                    }
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
