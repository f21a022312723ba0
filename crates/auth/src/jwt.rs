//! JSON Web Tokens: which are accepted of whom (RFC 7519, RFC 8725, RFC 9068). The key is chosen by us, the algorithm
//! is checked against the key, and what a token says of its own keys is ignored.

use std::collections::BTreeSet;

use async_trait::async_trait;
pub use jsonwebtoken::Algorithm;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{DecodingKey, Header, Validation};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::scope::Scopes;

/// Longer tokens are not looked at, in bytes.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;
/// Clocks may differ by this many seconds.
pub const LEEWAY: u64 = 30;
/// Why a token whose time is over is refused.
pub(crate) const EXPIRED: &str = "it has expired";
/// All algorithms that can be accepted: asymmetric ones.
pub const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Why what a token says is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrong {
    /// For the log.
    pub why: &'static str,
    /// Whether its issuer has signed it all the same.
    pub is_genuine: bool,
}

impl Wrong {
    fn forged(why: &'static str) -> Self {
        Self { why, is_genuine: false }
    }

    fn genuine(why: &'static str) -> Self {
        Self { why, is_genuine: true }
    }
}

/// A key that signatures can be checked with.
#[derive(Debug, Clone)]
pub struct VerifyingKey {
    /// Names it.
    pub kid: Option<String>,
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

impl VerifyingKey {
    /// The key that a JWK is; `None` for one that is not for signatures or not asymmetric.
    pub fn of(jwk: &Jwk) -> Option<Self> {
        let family: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &ALGORITHMS[..6],
            AlgorithmParameters::EllipticCurve(p) if p.curve == EllipticCurve::P256 => &ALGORITHMS[6..7],
            AlgorithmParameters::EllipticCurve(p) if p.curve == EllipticCurve::P384 => &ALGORITHMS[7..8],
            AlgorithmParameters::OctetKeyPair(_) => &ALGORITHMS[8..],
            _ => return None,
        };
        let named = jwk.common.key_algorithm.map(|named| named.to_string());
        let fits = |algorithm: &&Algorithm| {
            named
                .as_ref()
                .is_none_or(|named| named.parse::<Algorithm>().is_ok_and(|named| named == **algorithm))
        };
        let algorithms: Vec<Algorithm> = family.iter().filter(fits).copied().collect();
        let key = DecodingKey::from_jwk(jwk).ok()?;
        (!algorithms.is_empty()).then(|| Self { kid: jwk.common.key_id.clone(), key, algorithms })
    }

    /// What a token says that this key has signed and that is as `validation` wants it; else why not.
    pub(crate) fn decode<C: DeserializeOwned + Clone>(
        &self,
        token: &str,
        validation: &Validation,
    ) -> Result<C, Wrong> {
        let decoded = jsonwebtoken::decode::<C>(token, &self.key, validation);
        decoded.map(|decoded| decoded.claims).map_err(|error| wrong(error.kind()))
    }

    /// Whether it can check a signature of this algorithm.
    pub fn fits(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }
}

/// Keys can't be had now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the keys of {issuer} can't be had: {why}")]
pub struct NoKeys {
    /// Whose.
    pub issuer: String,
    /// Why.
    pub why: String,
}

/// Where the keys of an issuer are.
#[async_trait]
pub trait KeySource: Send + Sync {
    /// The key with this id that fits the algorithm; without an id the only one that does.
    async fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Option<VerifyingKey>, NoKeys>;
}

/// Which tokens of an issuer are accepted.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Exactly as in tokens.
    pub issuer: String,
    /// Of [`ALGORITHMS`].
    pub algorithms: Vec<Algorithm>,
    /// What `typ` may be, in lower case and without `application/`.
    pub types: Vec<String>,
    /// Audiences that are accepted beside the resource itself.
    pub audiences: Vec<String>,
    /// `client_id`s of an identity provider, for which only ID tokens are issued.
    pub clients: Vec<String>,
    /// The claim with the groups of a subject.
    pub groups_claim: String,
    /// A token may be good for this many seconds at most.
    pub max_lifetime: Option<f64>,
}

/// Groups of one subject that are read.
const MAX_GROUPS: usize = 1000;

/// What a token says.
#[derive(Debug, Clone, Deserialize)]
pub struct Claims {
    /// Who has issued it.
    pub iss: String,
    /// Of whom it is.
    pub sub: String,
    /// When it ends, in seconds since 1970.
    pub exp: f64,
    /// When it was issued.
    pub iat: Option<f64>,
    /// To which client.
    pub client_id: Option<String>,
    /// The same, of some issuers.
    pub azp: Option<String>,
    /// Names it.
    pub jti: Option<String>,
    /// What it allows.
    scope: Option<Value>,
    /// The same, of some issuers.
    scp: Option<Value>,
    /// All else, which other issuers may mean otherwise than we do.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Groups as issuers name them: an array of texts, or one. More than [`MAX_GROUPS`] are not read.
pub(crate) fn groups_of(claim: Option<&Value>) -> BTreeSet<String> {
    match claim {
        Some(Value::String(one)) => BTreeSet::from([one.clone()]),
        Some(Value::Array(all)) => {
            all.iter().filter_map(Value::as_str).take(MAX_GROUPS).map(str::to_owned).collect()
        }
        _ => BTreeSet::new(),
    }
}

impl Claims {
    /// What it allows.
    pub fn scopes(&self) -> Scopes {
        match self.scope.as_ref().or(self.scp.as_ref()) {
            Some(Value::String(text)) => Scopes::parse(text),
            Some(Value::Array(all)) => Scopes::new(all.iter().filter_map(Value::as_str)),
            _ => Scopes::default(),
        }
    }

    /// The groups of its subject, which the claim of this name has.
    pub fn groups(&self, claim: &str) -> BTreeSet<String> {
        groups_of(self.rest.get(claim))
    }

    /// To which client it was issued.
    pub fn client(&self) -> Option<&str> {
        self.client_id.as_deref().or(self.azp.as_deref())
    }

    /// Of ours: the grant.
    pub fn grant(&self) -> Option<&str> {
        self.text("gid")
    }

    /// Of ours: the refresh token that it came with.
    pub fn refresh(&self) -> Option<&str> {
        self.text("rid")
    }

    /// Of ours: the version of the user.
    pub fn user_version(&self) -> Option<i64> {
        self.rest.get("ver").and_then(Value::as_i64)
    }

    /// Of ours: the version of a client that the configuration names.
    pub fn client_version(&self) -> Option<i64> {
        self.rest.get("cver").and_then(Value::as_i64)
    }

    /// A claim that is a text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.rest.get(name).and_then(Value::as_str)
    }
}

/// A token whose form is one, of which nothing is proven.
#[derive(Debug)]
pub struct Unverified<'t> {
    token: &'t str,
    header: Header,
    issuer: String,
}

#[derive(Deserialize)]
struct Issuer {
    iss: String,
}

impl<'t> Unverified<'t> {
    /// Reads the form of a token.
    pub fn read(token: &'t str) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES || token.bytes().filter(|b| *b == b'.').count() != 2 {
            return None;
        }
        let header = jsonwebtoken::decode_header(token).ok()?;
        let Issuer { iss } = jsonwebtoken::dangerous::insecure_decode_claims(token).ok()?;
        Some(Self { token, header, issuer: iss })
    }

    /// Who it says has issued it.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Which key it says it was signed with, and how.
    pub fn key(&self) -> (Option<&str>, Algorithm) {
        (self.header.kid.as_deref(), self.header.alg)
    }

    /// Whether its type and algorithm are among those of the policy.
    pub fn fits(&self, policy: &Policy) -> Result<(), &'static str> {
        let typ = self.header.typ.as_deref().unwrap_or_default().to_ascii_lowercase();
        let typ = typ.strip_prefix("application/").unwrap_or(&typ);
        if !policy.types.iter().any(|accepted| accepted == typ) {
            return Err("its type is not accepted");
        }
        if !ALGORITHMS.contains(&self.header.alg) || !policy.algorithms.contains(&self.header.alg) {
            return Err("its algorithm is not accepted");
        }
        Ok(())
    }

    /// What the token says, if `key` has signed it and it is for `resource`.
    ///
    /// # Errors
    ///
    /// Why it is not accepted.
    pub fn verify(&self, policy: &Policy, key: &VerifyingKey, resource: &str) -> Result<Claims, Wrong> {
        let algorithm = self.header.alg;
        if !key.fits(algorithm) {
            return Err(Wrong::forged("its algorithm is not the key's"));
        }
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_issuer(&[&policy.issuer]);
        let audiences: Vec<&str> =
            std::iter::once(resource).chain(policy.audiences.iter().map(String::as_str)).collect();
        validation.set_audience(&audiences);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let claims: Claims = key.decode(self.token, &validation)?;
        check(&claims, policy).map_err(Wrong::genuine)?;
        Ok(claims)
    }
}

impl Unverified<'_> {
    /// What a token of ours says, for whichever resource.
    pub(crate) fn own(&self, policy: &Policy, key: &VerifyingKey) -> Option<Claims> {
        let mut validation = Validation::new(self.header.alg);
        validation.leeway = LEEWAY;
        validation.set_issuer(&[&policy.issuer]);
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "iss"]);
        key.decode(self.token, &validation).ok()
    }
}

/// What a token of ours says of itself, of which nothing is proven.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Said {
    pub(crate) aud: String,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
}

impl Unverified<'_> {
    pub(crate) fn said(&self) -> Option<Said> {
        jsonwebtoken::dangerous::insecure_decode_claims(self.token).ok()
    }
}

/// What the library does not check.
fn check(claims: &Claims, policy: &Policy) -> Result<(), &'static str> {
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let now = chrono::Utc::now().timestamp() as f64;
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let leeway = LEEWAY as f64;
    let has = |name: &str| claims.rest.contains_key(name);
    if claims.iss != policy.issuer {
        return Err("its issuer is another");
    }
    if claims.sub.is_empty() {
        return Err("it names nobody");
    }
    if claims.iat.is_some_and(|iat| iat > now + leeway) {
        return Err("it was issued in the future");
    }
    if policy.max_lifetime.is_some_and(|most| claims.exp - claims.iat.unwrap_or(now) > most) {
        return Err("it is good for longer than is accepted");
    }
    if has("cnf") {
        return Err("it is bound to a key of its sender");
    }
    let is_other_use = claims.rest.get("token_use").is_some_and(|usage| usage != "access");
    if ["nonce", "at_hash", "c_hash", "events"].into_iter().any(has) || is_other_use {
        return Err("it is no access token");
    }
    let audience = claims.rest.get("aud");
    let is_for_client = |aud: &Value| policy.clients.iter().any(|client| aud == client.as_str());
    let of_client = match audience {
        Some(Value::Array(all)) => all.iter().any(is_for_client),
        Some(aud) => is_for_client(aud),
        None => false,
    };
    if of_client { Err("it is an ID token") } else { Ok(()) }
}

/// The signature is looked at before anything that is said.
fn wrong(kind: &ErrorKind) -> Wrong {
    match kind {
        ErrorKind::ExpiredSignature => Wrong::genuine(EXPIRED),
        ErrorKind::ImmatureSignature => Wrong::genuine("it is not good yet"),
        ErrorKind::InvalidAudience => Wrong::genuine("it is for another resource"),
        ErrorKind::InvalidIssuer => Wrong::genuine("its issuer is another"),
        ErrorKind::MissingRequiredClaim(_) => Wrong::genuine("it lacks a claim"),
        ErrorKind::InvalidSignature => Wrong::forged("its signature is wrong"),
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => {
            Wrong::forged("its algorithm is not accepted")
        }
        _ => Wrong::forged("it is malformed"),
    }
}
