//! Session ids: sealed handles with all that a session agreed on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::seal::{KeyRing, Purpose};
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
    /// Capabilities and client infos that are too large for an id, by their hash.
    bulk: Mutex<HashMap<String, Bulk>>,
}

fn raw(bytes: &Bytes) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8(bytes.to_vec()).ok()?).ok()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl Handles {
    pub(super) fn new(keys: Arc<KeyRing>) -> Self {
        Self { keys, bulk: Mutex::default() }
    }

    /// An id for a new session of `client`.
    pub(super) fn seal(&self, client: &Client, endpoint: &str) -> String {
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
            return id;
        }
        sealed.bulk = Some(self.keep(client));
        sealed.capabilities = None;
        sealed.info = None;
        self.write(&sealed)
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
    pub(super) fn open(&self, id: &str, endpoint: &str) -> Option<Client> {
        let plain = self.keys.open(Purpose::Session, id)?;
        let sealed: Sealed = serde_json::from_slice(&plain).ok()?;
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
    use drawbridge_core::seal::SealKey;

    fn handles() -> Handles {
        Handles::new(Arc::new(KeyRing::new(&[SealKey { id: "k".into(), secret: [1; 32] }]).unwrap()))
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

    #[test]
    fn an_id_brings_back_all_that_was_agreed() {
        let handles = handles();
        let id = handles.seal(&client(r#"{"roots":{"listChanged": true}}"#), "files");
        assert!(id.bytes().all(|b| (0x21..=0x7e).contains(&b)));
        let back = handles.open(&id, "files").unwrap();
        assert_eq!(back.version, ProtocolVersion::V2025_06_18);
        assert_eq!(back.capabilities, r#"{"roots":{"listChanged": true}}"#);
        assert_eq!(back.info.unwrap(), r#"{"name": "x"}"#);
        assert!(handles.open(&id, "other").is_none());
    }

    /// What is kept: entries and bytes.
    fn kept(handles: &Handles) -> (usize, usize) {
        let bulk = handles.bulk.lock();
        (bulk.len(), bulk.values().map(Bulk::len).sum())
    }

    #[test]
    fn large_declarations_are_kept_within_bounds_and_those_in_use_longest() {
        let declares = |n: usize, bytes: usize| client(&format!(r#"{{"x":"{n:08}{}"}}"#, "y".repeat(bytes)));
        let large = handles();
        let in_use = large.seal(&declares(0, 60_000), "");
        let first = large.seal(&declares(1, 60_000), "");
        for n in 2..700 {
            large.seal(&declares(n, 60_000), "");
            assert!(large.open(&in_use, "").is_some(), "{n}");
        }
        assert!(kept(&large).1 <= MAX_BULK_BYTES + crate::MAX_DECLARED_BYTES, "{:?}", kept(&large));
        assert!(large.open(&first, "").is_none());

        let small = handles();
        for n in 0..MAX_BULK + 100 {
            small.seal(&declares(n, 2_000), "");
        }
        assert_eq!(kept(&small).0, MAX_BULK);
        // The same again is no more.
        small.seal(&declares(MAX_BULK + 99, 2_000), "");
        assert!(kept(&small).0 <= MAX_BULK);
    }

    #[test]
    fn an_id_stays_short_whatever_the_client_declares() {
        let handles = handles();
        let large = format!(r#"{{"experimental":{{"x":"{}"}}}}"#, "y".repeat(50_000));
        let id = handles.seal(&client(&large), "");
        assert!(id.len() <= MAX_ID_BYTES, "{}", id.len());
        assert_eq!(handles.open(&id, "").unwrap().capabilities, large);
    }
}
