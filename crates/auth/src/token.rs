//! Tokens that the gateway issues itself: their form, so that scanners find them and typing errors show.
//!
//! `drb_<kind>_<34 random characters><6 characters of checksum>`, all of `0-9A-Za-z`. The checksum is CRC-32
//! (ISO-HDLC) of everything before it, in base 62. It is no security, it saves look-ups.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::records::SecretHash;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const RANDOM: usize = 34;
const CHECKSUM: usize = 6;
/// All of our secrets begin like this.
pub const PREFIX: &str = "drb_";

/// What an issued token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// Acts as a user at MCP endpoints.
    Personal,
    /// Acts as a service at MCP endpoints.
    Service,
    /// For the admin API alone.
    Admin,
}

impl TokenKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Personal, Self::Service, Self::Admin];

    /// Its name in records and in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Personal => "personal",
            Self::Service => "service",
            Self::Admin => "admin",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    fn secret(self) -> SecretKind {
        match self {
            Self::Personal => SecretKind::Personal,
            Self::Service => SecretKind::Service,
            Self::Admin => SecretKind::Admin,
        }
    }
}

/// What a secret of ours is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecretKind {
    /// A personal token.
    Personal,
    /// A service token.
    Service,
    /// An admin token.
    Admin,
    /// An OAuth refresh token.
    Refresh,
    /// An OAuth client secret.
    Client,
}

impl From<TokenKind> for SecretKind {
    fn from(kind: TokenKind) -> Self {
        kind.secret()
    }
}

impl SecretKind {
    const ALL: [Self; 5] = [Self::Personal, Self::Service, Self::Admin, Self::Refresh, Self::Client];

    fn infix(self) -> &'static str {
        match self {
            Self::Personal => "pat",
            Self::Service => "svc",
            Self::Admin => "adm",
            Self::Refresh => "rt",
            Self::Client => "cs",
        }
    }
}

/// A secret in clear. It is shown once, to whom it was issued.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A new one.
    pub fn fresh(kind: SecretKind) -> Self {
        let mut text = format!("{PREFIX}{}_", kind.infix());
        let end = text.len() + RANDOM;
        while text.len() < end {
            for byte in rand::random::<[u8; 64]>() {
                // 248 is four times 62: the rest would make some characters likelier than others.
                if byte < 248 && text.len() < end {
                    text.push(char::from(ALPHABET[usize::from(byte % 62)]));
                }
            }
        }
        let sum = checksum(&text);
        text.push_str(&sum);
        Self(text)
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What it is kept and looked up by.
    pub fn hash(&self) -> SecretHash {
        hash(&self.0)
    }

    /// The last four characters, by which people tell tokens apart.
    pub fn hint(&self) -> &str {
        self.0.get(self.0.len().saturating_sub(4)..).unwrap_or_default()
    }
}

/// What a text that claims to be a secret of ours is; `None` if its form or its checksum is wrong.
pub fn parse(text: &str) -> Option<SecretKind> {
    let rest = text.strip_prefix(PREFIX)?;
    let (infix, body) = rest.split_once('_')?;
    let kind = SecretKind::ALL.into_iter().find(|kind| kind.infix() == infix)?;
    let legal = body.len() == RANDOM + CHECKSUM && body.bytes().all(|b| b.is_ascii_alphanumeric());
    if !legal {
        return None;
    }
    let (before, sum) = text.split_at(text.len() - CHECKSUM);
    (checksum(before) == sum).then_some(kind)
}

/// What a secret is kept and looked up by: SHA-256. It needs no stretching, it has 202 random bits.
pub fn hash(secret: &str) -> SecretHash {
    SecretHash(Sha256::digest(secret).into())
}

fn checksum(text: &str) -> String {
    let mut left = crc32fast::hash(text.as_bytes());
    let mut digits = [b'0'; CHECKSUM];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(left % 62) as usize];
        left /= 62;
    }
    digits.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors_of_the_format() {
        let text = "drb_pat_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA4NBV5w";
        assert_eq!(parse(text), Some(SecretKind::Personal));
        let hex: String = hash(text).0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "fabde190bc8fe6c4275cac28f4a5e5ae52a6b6902d9112f7cf50c1945f0486a2");
        assert_eq!(parse("drb_svc_00000000000000000000000000000000003ngXLH"), Some(SecretKind::Service));
    }

    #[test]
    fn a_fresh_secret_is_of_its_kind_and_no_other_is_like_it() {
        let mut seen = std::collections::HashSet::new();
        for kind in SecretKind::ALL {
            for _ in 0..200 {
                let secret = Secret::fresh(kind);
                assert_eq!(parse(secret.expose()), Some(kind));
                assert!(secret.expose().ends_with(secret.hint()) && secret.hint().len() == 4);
                assert!(seen.insert(secret.expose().to_owned()));
            }
        }
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        let secret = Secret::fresh(SecretKind::Personal);
        assert!(!format!("{secret:?} {:?}", secret.hash()).contains(secret.expose()));
    }

    proptest! {
        #[test]
        fn one_wrong_character_is_noticed(at in 8usize..48, to in "[0-9A-Za-z]") {
            let secret = Secret::fresh(SecretKind::Personal);
            let mut text = secret.expose().to_owned();
            prop_assume!(text.get(at..=at) != Some(to.as_str()));
            text.replace_range(at..=at, &to);
            prop_assert_eq!(parse(&text), None);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,64}", tail in "drb_(pat|adm|x)_.{0,48}") {
            let _ = (parse(&text), parse(&tail));
        }
    }
}
