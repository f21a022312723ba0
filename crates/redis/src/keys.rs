//! Every key that is written, and the slot of a cluster that it belongs to.
//!
//! All begin with the prefix and the version of this layout, `drawbridge:1:`. Braces are the hash tag: what has one
//! tag is on one node of a cluster.

use std::fmt::Write as _;

use drawbridge_core::event_log::{SessionKey, StreamKey};
use drawbridge_core::state::InstanceId;

/// Raised when keys or values change so that an older instance would misread them.
const VERSION: u32 = 1;

/// Makes keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    base: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { base: format!("{prefix}:{VERSION}:") }
    }

    /// Hash: the fields of a session.
    pub(crate) fn session(&self, session: &SessionKey) -> String {
        format!("{}{{{}}}:session", self.base, Hex(&session.0))
    }

    /// Stream: events of one stream of a session.
    pub(crate) fn events(&self, key: &StreamKey) -> String {
        format!("{}{{{}}}:events:{}", self.base, Hex(&key.session.0), key.stream)
    }

    /// String: is there while the instance lives.
    pub(crate) fn presence(&self, instance: &InstanceId) -> String {
        format!("{}{{{instance}}}:presence", self.base)
    }

    /// Stream: messages to the instance.
    pub(crate) fn inbox(&self, instance: &InstanceId) -> String {
        format!("{}{{{instance}}}:inbox", self.base)
    }

    /// Sorted set: instances by when their presence ends.
    pub(crate) fn instances(&self) -> String {
        format!("{}instances", self.base)
    }

    /// Stream: what was revoked.
    pub(crate) fn revocations(&self) -> String {
        format!("{}revocations", self.base)
    }

    /// Channel of a topic. All have one tag, so that one connection hears all of them.
    pub(crate) fn topic(&self, topic: &str) -> String {
        format!("{}{{topics}}:{}", self.base, Plain(topic))
    }

    /// String: who has a lease.
    pub(crate) fn lease(&self, name: &str) -> String {
        format!("{}{{lease:{}}}", self.base, Plain(name))
    }

    /// String: the last token of a lease.
    pub(crate) fn lease_token(&self, name: &str) -> String {
        format!("{}{{lease:{}}}:token", self.base, Plain(name))
    }

    /// String: is there while a claim lasts.
    pub(crate) fn claim(&self, name: &str) -> String {
        format!("{}claim:{}", self.base, Plain(name))
    }

    /// String: when a limited key would be as if it had never been used.
    pub(crate) fn limit(&self, key: &str) -> String {
        format!("{}limit:{}", self.base, Plain(key))
    }
}

/// The type that a key has, by its name.
pub(crate) fn kind(key: &str) -> &'static str {
    let ends = |end: &str| key.ends_with(end);
    let is_events = || key.contains("}:events:");
    if ends("}:session") {
        "hash"
    } else if ends(":instances") {
        "zset"
    } else if ends("}:inbox") || ends(":revocations") || is_events() {
        "stream"
    } else {
        "string"
    }
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A name whose braces, blanks and control characters can't be taken for something else.
struct Plain<'a>(&'a str);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'{' | b'}' | b'%' | b'*' | b'?' | b'[' | b']' | b'\\' | ..=b' ' | 0x7f.. => {
                    write!(f, "%{byte:02X}")?;
                }
                _ => f.write_char(char::from(byte))?,
            }
        }
        Ok(())
    }
}

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// The slot of a key: of what stands in its first braces, if something does.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let behind = key.get(open + 1..)?;
        let close = behind.iter().position(|b| *b == b'}')?;
        behind.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // What `CLUSTER KEYSLOT` says.
        for (key, expected) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("foo{hash_tag}", 2515),
            ("{user1000}.following", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn a_key_says_which_type_it_has() {
        let keys = Keys::new("drawbridge");
        let (session, instance) = (SessionKey([1; 16]), InstanceId::fresh());
        assert_eq!(kind(&keys.session(&session)), "hash");
        assert_eq!(kind(&keys.instances()), "zset");
        let streams =
            [keys.inbox(&instance), keys.revocations(), keys.events(&StreamKey { session, stream: 1 })];
        assert!(streams.iter().all(|key| kind(key) == "stream"), "{streams:?}");
        for name in ["x", ":instances", "}:session", "{a}:inbox", "}:events:1"] {
            let strings = [
                keys.presence(&instance),
                keys.lease(name),
                keys.lease_token(name),
                keys.claim(name),
                keys.limit(name),
            ];
            let plain = |key: &String| !name.starts_with(':') || !key.ends_with(name);
            assert!(strings.iter().filter(|key| plain(key)).all(|key| kind(key) == "string"), "{strings:?}");
        }
    }

    #[test]
    fn what_belongs_together_has_one_slot_whatever_it_is_called() {
        let keys = Keys::new("drawbridge");
        let session = SessionKey([0xab; 16]);
        let of = |key: String| slot(key.as_bytes());
        let events = keys.events(&StreamKey { session, stream: 7 });
        assert_eq!(keys.session(&session), "drawbridge:1:{abababababababababababababababab}:session");
        assert_eq!(of(keys.session(&session)), of(events));
        let instance = InstanceId::fresh();
        assert_eq!(of(keys.presence(&instance)), of(keys.inbox(&instance)));
        assert_eq!(of(keys.topic("a")), of(keys.topic("b")));
        for name in ["", "}", "{", "{}", "a}b", "ä b", "%7D"] {
            assert_eq!(of(keys.lease(name)), of(keys.lease_token(name)), "{name:?}");
        }
        assert_ne!(keys.lease("}"), keys.lease("%7D"));
    }
}
