//! The keys that checkpoints are signed with (ES256). They are in the records, sealed; all instances sign with the same.
//! The public part follows from the private one, so whoever can open that trusts no word of the database.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use chrono::{TimeDelta, Utc};
use drawbridge_core::seal::{KeyRing, Purpose};
use jsonwebtoken::jwk::{Jwk, PublicKeyUse, ThumbprintHash};
use jsonwebtoken::{Algorithm, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::store::{AuditKey, AuditStore, Checkpoint, CheckpointKind, Head};
use crate::jwt::VerifyingKey;
use crate::records::{RecordsError, Time};
use crate::signing::SigningError;

/// Checkpoints are of this type.
const TYPE: &str = "drawbridge-checkpoint+jwt";
/// A key signs for so long. It is kept for as long as there is a trail.
const SIGNS: TimeDelta = TimeDelta::days(365);
/// A statement that is longer is none.
const MAX_STATEMENT: usize = 64 * 1024;

/// What a checkpoint says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Why it was made.
    pub kind: CheckpointKind,
    /// Which entry it is about.
    #[serde(flatten)]
    pub head: Head,
    /// When it was made, in microseconds since 1970.
    pub at: i64,
    /// The last entries of other chains at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Head>,
}

struct Current {
    kid: String,
    signs: EncodingKey,
    created_at: Time,
}

/// The keys of this gateway.
pub struct AuditKeys {
    store: Arc<dyn AuditStore>,
    ring: Arc<KeyRing>,
    current: ArcSwapOption<Current>,
}

impl std::fmt::Debug for AuditKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditKeys").finish_non_exhaustive()
    }
}

impl AuditKeys {
    /// Keys in `store`, sealed by `ring`.
    pub fn new(store: Arc<dyn AuditStore>, ring: Arc<KeyRing>) -> Self {
        Self { store, ring, current: ArcSwapOption::empty() }
    }

    /// Reads the keys, makes one if there is none that signs now, and seals those anew whose seal key is on its way out.
    ///
    /// # Errors
    ///
    /// If the records can't be had, or a key can't be made.
    pub async fn tend(&self) -> Result<(), SigningError> {
        let mut newest: Option<Current> = None;
        for key in self.store.audit_keys().await? {
            let Some(private) = self.ring.open(Purpose::AuditKey, &key.private) else { continue };
            if self.ring.is_outdated(&key.private) {
                let private = self.ring.seal(Purpose::AuditKey, &private);
                self.store.keep_audit_key(&AuditKey { private, ..key.clone() }).await?;
            }
            let signs = EncodingKey::from_ec_der(&private);
            newest = Some(Current { kid: key.kid, signs, created_at: key.created_at });
        }
        let now = Utc::now();
        let current = match newest.filter(|key| now - key.created_at < SIGNS) {
            Some(current) => current,
            // Two instances may do this at once: then there are two, and both are good.
            None => self.make(now).await?,
        };
        self.current.store(Some(Arc::new(current)));
        Ok(())
    }

    async fn make(&self, now: Time) -> Result<Current, SigningError> {
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let made = made.map_err(|_| SigningError::Key("of the audit trail could not be made"))?;
        let signs = EncodingKey::from_ec_der(made.as_ref());
        let (kid, public) = public(&signs).ok_or(SigningError::Key("of the audit trail can't be read"))?;
        let key = AuditKey {
            kid: kid.clone(),
            private: self.ring.seal(Purpose::AuditKey, made.as_ref()),
            public: serde_json::to_value(&public)
                .map_err(|_| SigningError::Key("of the audit trail can't be written"))?,
            created_at: now,
        };
        self.store.keep_audit_key(&key).await?;
        tracing::info!(audit.kid = kid, "made a key that signs checkpoints of the audit trail");
        Ok(Current { kid, signs, created_at: now })
    }

    /// The keys that are believed by whoever has the seal keys.
    ///
    /// # Errors
    ///
    /// If the records can't be had.
    pub async fn trust(&self) -> Result<Trust, RecordsError> {
        Ok(Trust::of(&self.store.audit_keys().await?, Some(&self.ring), &[]))
    }

    /// A checkpoint that says this.
    ///
    /// # Errors
    ///
    /// If there is no key, and none can be had.
    pub async fn sign(&self, statement: Statement) -> Result<Checkpoint, SigningError> {
        let is_over = |key: &Arc<Current>| Utc::now() - key.created_at >= SIGNS;
        if self.current.load().as_ref().is_none_or(is_over) {
            self.tend().await?;
        }
        let key = self.current.load_full().ok_or(SigningError::Key("of the audit trail is missing"))?;
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some(TYPE.to_owned());
        header.kid = Some(key.kid.clone());
        let signed = jsonwebtoken::encode(&header, &statement, &key.signs)
            .map_err(|_| SigningError::Key("of the audit trail could not be used"))?;
        let at = Time::from_timestamp_micros(statement.at).unwrap_or_default();
        Ok(Checkpoint { head: statement.head, kind: statement.kind, at, statement: signed })
    }
}

/// The public part of a key, and its thumbprint.
fn public(signs: &EncodingKey) -> Option<(String, Jwk)> {
    let mut jwk = Jwk::from_encoding_key(signs, Algorithm::ES256).ok()?;
    let kid = jwk.thumbprint(ThumbprintHash::SHA256).ok()?;
    jwk.common.key_id = Some(kid.clone());
    jwk.common.public_key_use = Some(PublicKeyUse::Signature);
    Some((kid, jwk))
}

/// Which keys are believed, and why.
#[derive(Debug, Default)]
pub struct Trust {
    keys: HashMap<String, VerifyingKey>,
    /// Keys that the database has and that nothing else speaks for.
    unproven: Vec<String>,
    is_on_its_word: bool,
}

impl Trust {
    /// Believes those of `keys` that `ring` opens, and those that `named` names by their thumbprints. Without either
    /// the database is taken at its word.
    pub fn of(keys: &[AuditKey], ring: Option<&KeyRing>, named: &[String]) -> Self {
        let is_on_its_word = ring.is_none() && named.is_empty();
        let mut trust = Self { is_on_its_word, ..Self::default() };
        for key in keys {
            let sealed = ring.and_then(|ring| ring.open(Purpose::AuditKey, &key.private));
            let sealed = sealed.and_then(|private| public(&EncodingKey::from_ec_der(&private)));
            let written = || {
                let jwk: Jwk = serde_json::from_value(key.public.clone()).ok()?;
                Some((jwk.thumbprint(ThumbprintHash::SHA256).ok()?, jwk))
            };
            let is_named = named.contains(&key.kid);
            let believed = match sealed {
                Some(sealed) => Some(sealed),
                None if is_named || is_on_its_word => written(),
                None => None,
            };
            match believed.filter(|(kid, _)| *kid == key.kid).and_then(|(_, jwk)| VerifyingKey::of(&jwk)) {
                Some(verifies) => {
                    trust.keys.insert(key.kid.clone(), verifies);
                }
                None => trust.unproven.push(key.kid.clone()),
            }
        }
        trust
    }

    /// Whether nothing but the database itself speaks for its keys.
    pub fn is_on_its_word(&self) -> bool {
        self.is_on_its_word
    }

    /// The thumbprints of the keys that are believed.
    pub fn kids(&self) -> Vec<&str> {
        let mut kids: Vec<&str> = self.keys.keys().map(String::as_str).collect();
        kids.sort_unstable();
        kids
    }

    /// What a checkpoint says, if it is signed by a key that is believed and is what its row says.
    ///
    /// # Errors
    ///
    /// Why it is not believed.
    pub fn check(&self, checkpoint: &Checkpoint) -> Result<Statement, String> {
        if checkpoint.statement.len() > MAX_STATEMENT {
            return Err("its statement is too long".to_owned());
        }
        let header = jsonwebtoken::decode_header(&checkpoint.statement)
            .map_err(|_| "its statement can't be read".to_owned())?;
        if header.typ.as_deref() != Some(TYPE) || header.alg != Algorithm::ES256 {
            return Err("its statement is of another type".to_owned());
        }
        let kid = header.kid.unwrap_or_default();
        let Some(key) = self.keys.get(&kid) else {
            return Err(match self.unproven.contains(&kid) {
                true => format!("its key {kid:?} is one that no seal key opens"),
                false => format!("its key {kid:?} is not known"),
            });
        };
        let mut validation = Validation::new(Algorithm::ES256);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let said: Statement = key
            .decode(&checkpoint.statement, &validation)
            .map_err(|_| "its signature is wrong".to_owned())?;
        let is_same = said.head == checkpoint.head
            && said.kind == checkpoint.kind
            && said.at == checkpoint.at.timestamp_micros();
        if is_same { Ok(said) } else { Err("its row says something else than its statement".to_owned()) }
    }
}
