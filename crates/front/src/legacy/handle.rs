//! Session ids: sealed handles with all that a session agreed on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::seal::{KeyRing, Purpose};
use drawbridge_core::state::{SharedState, Unavailable};
use drawbridge_core::{Answers, Client, Principal};
use drawbridge_wire::ProtocolVersion;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// A session id is good for this long.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Clients must send the id with each request, so one that would be longer leaves its bulk here.
const MAX_ID_BYTES: usize = 2048;
const MAX_BULK: usize = 2_000;
const MAX_BULK_BYTES: usize = 32 << 20;

#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(rename = "v")]
    version: String,
    #[serde(rename = "e")]
    endpoint: String,
    #[serde(rename = "p")]
    principal: String,
    /// Seconds since 1970.
    #[serde(rename = "t")]
    opened: u64,
    #[serde(rename = "c", skip_serializing_if = "Option::is_none")]
    capabilities: Option<Box<RawValue>>,
    #[serde(rename = "i", skip_serializing_if = "Option::is_none")]
    info: Option<Box<RawValue>>,
    /// The hash under which capabilities and info are kept, if they are not here.
    #[serde(rename = "h", skip_serializing_if = "Option::is_none")]
    bulk: Option<String>,
}

/// What a client declared, in shared state.
#[derive(Serialize, Deserialize)]
struct Declared {
    #[serde(rename = "c")]
    capabilities: Option<Box<RawValue>>,
    #[serde(rename = "i")]
    info: Option<Box<RawValue>>,
}

/// The field under which it is there.
const DECLARED: &str = "declared";

struct Bulk {
    capabilities: Bytes,
    info: Option<Bytes>,
    used: Instant,
}

impl Bulk {
    fn len(&self) -> usize {
        self.capabilities.len() + self.info.as_ref().map_or(0, Bytes::len)
    }
}

/// Makes and reads session ids.
pub struct Handles {
    keys: Arc<KeyRing>,
    /// Capabilities and client infos that are too large for an id, by their hash; all instances share them.
    bulk: Mutex<HashMap<String, Bulk>>,
    state: SharedState,
}

fn raw(bytes: &Bytes) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8(bytes.to_vec()).ok()?).ok()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl Handles {
    pub(super) fn new(keys: Arc<KeyRing>, state: SharedState) -> Self {
        Self { keys, bulk: Mutex::default(), state }
    }

    /// An id for a new session of `client`.
    ///
    /// # Errors
    ///
    /// If a part of it has to be in shared state, and that can't be reached.
    pub(super) async fn seal(&self, client: &Client, endpoint: &str) -> Result<String, Unavailable> {
        let mut sealed = Sealed {
            version: client.version.to_string(),
            endpoint: endpoint.to_owned(),
            principal: client.principal.as_str().to_owned(),
            opened: now(),
            capabilities: raw(&client.capabilities),
            info: client.info.as_ref().and_then(raw),
            bulk: None,
        };
        let id = self.write(&sealed);
        if id.len() <= MAX_ID_BYTES {
            return Ok(id);
        }
        let name = self.keep(client);
        if self.state.is_fleet {
            self.share(&name, client).await?;
        }
        sealed.bulk = Some(name);
        sealed.capabilities = None;
        sealed.info = None;
        Ok(self.write(&sealed))
    }

    /// Puts the bulk of a session id where other instances find it, for as long as the id is good.
    async fn share(&self, name: &str, client: &Client) -> Result<(), Unavailable> {
        let Some(key) = SessionKey::parse(name) else { return Ok(()) };
        let declared =
            Declared { capabilities: raw(&client.capabilities), info: client.info.as_ref().and_then(raw) };
        let value = serde_json::to_vec(&declared).unwrap_or_default();
        self.state.sessions.put_if_absent(key, DECLARED, value.into(), SESSION_LIFETIME).await?;
        Ok(())
    }

    /// The bulk that another instance has put there.
    async fn shared(&self, name: &str) -> Result<Option<Declared>, Unavailable> {
        let Some(key) = SessionKey::parse(name).filter(|_| self.state.is_fleet) else { return Ok(None) };
        let value = self.state.sessions.get(key, DECLARED).await?;
        Ok(value.and_then(|value| serde_json::from_slice(&value).ok()))
    }

    fn write(&self, sealed: &Sealed) -> String {
        self.keys.seal(Purpose::Session, &serde_json::to_vec(sealed).unwrap_or_default())
    }

    fn keep(&self, client: &Client) -> String {
        let mut hash = Sha256::new();
        hash.update(&client.capabilities);
        hash.update([0]);
        hash.update(client.info.as_deref().unwrap_or_default());
        let name: String = hash.finalize()[..16].iter().map(|b| format!("{b:02x}")).collect();
        let mut bulk = self.bulk.lock();
        let mut bytes: usize = bulk.values().map(Bulk::len).sum();
        while (bulk.len() >= MAX_BULK || bytes > MAX_BULK_BYTES)
            && let Some(oldest) = bulk.iter().min_by_key(|(_, b)| b.used).map(|(name, _)| name.clone())
        {
            bytes -= bulk.remove(&oldest).map_or(0, |gone| gone.len());
        }
        let (capabilities, info) = (client.capabilities.clone(), client.info.clone());
        bulk.insert(name.clone(), Bulk { capabilities, info, used: Instant::now() });
        name
    }

    /// The client of a genuine id of `endpoint` that has not expired.
    ///
    /// # Errors
    ///
    /// If a part of it is in shared state, and that can't be reached.
    pub(super) async fn open(&self, id: &str, endpoint: &str) -> Result<Option<Client>, Unavailable> {
        let Some(plain) = self.keys.open(Purpose::Session, id) else { return Ok(None) };
        let Ok(mut sealed) = serde_json::from_slice::<Sealed>(&plain) else { return Ok(None) };
        let missing = sealed.bulk.clone().filter(|name| !self.bulk.lock().contains_key(name));
        if let Some(name) = missing
            && let Some(declared) = self.shared(&name).await?
        {
            (sealed.capabilities, sealed.info) = (declared.capabilities, declared.info);
            sealed.bulk = None;
        }
        Ok(self.client_of(sealed, endpoint))
    }

    fn client_of(&self, sealed: Sealed, endpoint: &str) -> Option<Client> {
        let age = now().saturating_sub(sealed.opened);
        if sealed.endpoint != endpoint || age >= SESSION_LIFETIME.as_secs() {
            return None;
        }
        let bytes = |raw: Box<RawValue>| Bytes::from(raw.get().to_owned());
        let (capabilities, info) = match sealed.bulk {
            None => (sealed.capabilities.map(bytes), sealed.info.map(bytes)),
            Some(name) => {
                let mut bulk = self.bulk.lock();
                let kept = bulk.get_mut(&name)?;
                kept.used = Instant::now();
                (Some(kept.capabilities.clone()), kept.info.clone())
            }
        };
        Some(Client {
            principal: Principal::named(&sealed.principal),
            version: ProtocolVersion::parse(&sealed.version)?,
            capabilities: capabilities.unwrap_or_else(|| Bytes::from_static(b"{}")),
            info,
            answers: Answers::Live,
        })
    }
}

/// The key of the session with this id.
pub fn key(id: &str) -> SessionKey {
    let digest = Sha256::digest(id);
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    SessionKey(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawbridge_core::fleet::Peers;
    use drawbridge_core::seal::SealKey;

    fn handles() -> Handles {
        let keys = KeyRing::new(&[SealKey { id: "k".into(), secret: [1; 32] }]).unwrap();
        Handles::new(Arc::new(keys), Peers::alone().state().clone())
    }

    fn client(capabilities: &str) -> Client {
        Client {
            principal: Principal::anonymous(),
            version: ProtocolVersion::V2025_06_18,
            capabilities: Bytes::copy_from_slice(capabilities.as_bytes()),
            info: Some(Bytes::from_static(br#"{"name": "x"}"#)),
            answers: Answers::Live,
        }
    }

    #[tokio::test]
    async fn an_id_brings_back_all_that_was_agreed() {
        let handles = handles();
        let id = handles.seal(&client(r#"{"roots":{"listChanged": true}}"#), "files").await.unwrap();
        assert!(id.bytes().all(|b| (0x21..=0x7e).contains(&b)));
        let back = handles.open(&id, "files").await.unwrap().unwrap();
        assert_eq!(back.version, ProtocolVersion::V2025_06_18);
        assert_eq!(back.capabilities, r#"{"roots":{"listChanged": true}}"#);
        assert_eq!(back.info.unwrap(), r#"{"name": "x"}"#);
        assert!(handles.open(&id, "other").await.unwrap().is_none());
    }

    /// What is kept: entries and bytes.
    fn kept(handles: &Handles) -> (usize, usize) {
        let bulk = handles.bulk.lock();
        (bulk.len(), bulk.values().map(Bulk::len).sum())
    }

    #[tokio::test]
    async fn large_declarations_are_kept_within_bounds_and_those_in_use_longest() {
        let declares = |n: usize, bytes: usize| client(&format!(r#"{{"x":"{n:08}{}"}}"#, "y".repeat(bytes)));
        let large = handles();
        let in_use = large.seal(&declares(0, 60_000), "").await.unwrap();
        let first = large.seal(&declares(1, 60_000), "").await.unwrap();
        for n in 2..700 {
            large.seal(&declares(n, 60_000), "").await.unwrap();
            assert!(large.open(&in_use, "").await.unwrap().is_some(), "{n}");
        }
        assert!(kept(&large).1 <= MAX_BULK_BYTES + crate::MAX_DECLARED_BYTES, "{:?}", kept(&large));
        assert!(large.open(&first, "").await.unwrap().is_none());

        let small = handles();
        for n in 0..MAX_BULK + 100 {
            small.seal(&declares(n, 2_000), "").await.unwrap();
        }
        assert_eq!(kept(&small).0, MAX_BULK);
        // The same again is no more.
        small.seal(&declares(MAX_BULK + 99, 2_000), "").await.unwrap();
        assert!(kept(&small).0 <= MAX_BULK);
    }

    #[tokio::test]
    async fn an_id_stays_short_whatever_the_client_declares() {
        let handles = handles();
        let large = format!(r#"{{"experimental":{{"x":"{}"}}}}"#, "y".repeat(50_000));
        let id = handles.seal(&client(&large), "").await.unwrap();
        assert!(id.len() <= MAX_ID_BYTES, "{}", id.len());
        assert_eq!(handles.open(&id, "").await.unwrap().unwrap().capabilities, large);
    }
}
