//! From the text of a credential to whom it is from. What was found out is remembered by a digest of the text: a
//! request with a credential that is known costs one digest and a few look-ups, no signature and no question.

mod failures;
mod introspection;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::Utc;
use drawbridge_core::state::WithFallback;
use drawbridge_core::{Subject, SubjectKind, Tasks};
use ipnet::IpNet;
use moka::future::Cache;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::identity::{Credential, Identity, Kind, context, shown};
use crate::jwt::{EXPIRED, KeySource, LEEWAY, MAX_TOKEN_BYTES, Policy, Unverified, Wrong};
use crate::named_clients::NamedClients;
use crate::opaque::{self, Introspection};
use crate::records::{Records, RecordsError, Revocation, Time, Token, TokenStatus, User};
use crate::resource::Origin;
use crate::revoking::{RevocationKey, Revocations};
use crate::scope::{self, Scopes};
use crate::signing::MAX_LIFETIME;
use crate::token::{self, SecretKind, TokenKind};

use failures::Failures;
pub use introspection::Introspected;

/// Tokens whose records were looked up are looked up again after this time.
const FRESH: Duration = Duration::from_secs(30);
/// While records can't be had, they are good for this long, as long as revocations are heard.
const STALE: Duration = Duration::from_secs(600);
/// Credentials that are remembered.
const MAX_KNOWN: u64 = 50_000;
/// Those that are known to be none.
const MAX_REFUSED: u64 = 10_000;
const REFUSED_FOR: Duration = Duration::from_secs(5);
const REVOKED: &str = "it was revoked";

/// Why a credential is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Nobody has ever given it out: it is none, and may be a guess. Why is for the log alone.
    Invalid(&'static str),
    /// It is genuine, and not good: no longer, or not here. Nobody guesses such. Why is for the log alone.
    Unfit(&'static str),
    /// It can't be told now.
    Unavailable(String),
    /// It is none, or not known yet, and its address has sent too many that are none; when it may send more.
    TooOften(Duration),
}

impl From<RecordsError> for Refused {
    fn from(error: RecordsError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<Wrong> for Refused {
    fn from(wrong: Wrong) -> Self {
        if wrong.is_genuine { Self::Unfit(wrong.why) } else { Self::Invalid(wrong.why) }
    }
}

/// An issuer of JSON Web Tokens.
pub struct Issuer {
    /// Which are accepted.
    pub policy: Policy,
    /// Its keys.
    pub keys: Arc<dyn KeySource>,
    /// Of the gateway's own, whose tokens name a grant: the clients that the configuration names.
    pub own: Option<Arc<NamedClients>>,
    /// How to ask what tokens are that are no JSON Web Tokens, if it issues such.
    pub introspection: Option<Introspection>,
}

/// What an access token of the gateway's own is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantOfToken {
    /// A grant in the records, with this id.
    Recorded(String),
    /// One of its own, with this id: its client has got it for itself.
    Own {
        /// What names the token.
        id: String,
        /// Whose it is.
        client: String,
    },
}

struct Known {
    identity: Arc<Identity>,
    /// What can change without being revoked is looked up again after this.
    fresh_until: Option<Instant>,
    /// And is good until this if it can't be.
    good_until: Option<Instant>,
}

/// Finds out whom credentials are from.
pub struct Verifier {
    /// What names the resources; without it resources are named by their paths.
    origin: Option<Origin>,
    records: Arc<dyn Records>,
    revocations: Arc<Revocations>,
    issuers: Vec<Issuer>,
    known: Cache<[u8; 32], Arc<Known>>,
    refused: Cache<[u8; 32], Refused>,
    failures: Failures,
    tasks: Tasks,
    uses: Mutex<HashMap<String, (Time, Option<IpAddr>)>>,
    /// Whether who users are is looked up with their access tokens.
    needs_users: AtomicBool,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Verifier {
    /// A verifier of issued tokens and of those of `issuers`, that counts failures by `limiter`. What nobody waits for is
    /// among `tasks`.
    pub fn new(
        origin: Option<Origin>,
        records: Arc<dyn Records>,
        revocations: Arc<Revocations>,
        issuers: Vec<Issuer>,
        limiter: WithFallback,
        tasks: Tasks,
    ) -> Self {
        Self {
            origin,
            records,
            revocations,
            issuers,
            known: Cache::new(MAX_KNOWN),
            refused: Cache::builder().max_capacity(MAX_REFUSED).time_to_live(REFUSED_FOR).build(),
            failures: Failures::new(limiter),
            tasks,
            uses: Mutex::default(),
            needs_users: AtomicBool::new(false),
        }
    }

    /// Whether identities are to have the groups of users whose access tokens the gateway has made: these don't say.
    pub fn set_needs_users(&self, needs_users: bool) {
        if self.needs_users.swap(needs_users, Ordering::AcqRel) != needs_users {
            self.known.invalidate_all();
        }
    }

    /// The resource that the endpoint `name` is.
    fn resource(&self, endpoint: Option<&str>) -> String {
        match &self.origin {
            Some(origin) => origin.resource(endpoint),
            None => crate::resource::path_of(endpoint),
        }
    }

    /// Where revocations are heard.
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// Whom a credential for the endpoint `name` is from, that was sent from `address`.
    ///
    /// # Errors
    ///
    /// If it is not accepted, or that can't be told now.
    pub async fn verify(
        &self,
        credential: &str,
        endpoint: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Arc<Identity>, Refused> {
        match self.check(credential, endpoint, address).await {
            // What is genuine is nobody's guess, and its host is to log in again or to renew it, not to come back later.
            Err(Refused::Invalid(why)) => Err(self.failures.count(address, why).await),
            checked => checked,
        }
    }

    async fn check(
        &self,
        credential: &str,
        endpoint: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Arc<Identity>, Refused> {
        if credential.len() > MAX_TOKEN_BYTES {
            return Err(Refused::Invalid("it is too long"));
        }
        let identity = self.find(credential, endpoint, address).await?;
        if identity.expires_at.is_some_and(|end| end <= Utc::now()) {
            return Err(Refused::Unfit(EXPIRED));
        }
        if !identity.may_come_from(address) {
            return Err(Refused::Unfit("it is not accepted from this address"));
        }
        if let Credential::Token(id) = &identity.credential {
            self.note_use(id, address);
        }
        Ok(identity)
    }

    async fn find(
        &self,
        credential: &str,
        endpoint: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Arc<Identity>, Refused> {
        let key = digest(credential, endpoint);
        let known = self.known.get(&key).await;
        let is_current = self.revocations.is_current();
        if let Some(known) = &known {
            let is_good = !known.identity.keys.iter().any(|key| self.revocations.is_revoked(key));
            if !is_good && known.fresh_until.is_none() {
                // It says itself what it was made of, and that is over.
                return Err(Refused::Unfit(REVOKED));
            }
            let is_fresh = known.fresh_until.is_none_or(|until| Instant::now() < until);
            if is_good && is_fresh && is_current {
                return Ok(known.identity.clone());
            }
        }
        if let Some(why) = self.refused.get(&key).await {
            return Err(why);
        }
        let _turn = self.failures.turn(address).await?;
        match self.look_up(credential, endpoint).await {
            Ok(found) => {
                // What was revoked while it was looked up is refused by its key when it is used.
                if found.identity.keys.iter().any(|key| self.revocations.is_revoked(key)) {
                    return Err(Refused::Unfit(REVOKED));
                }
                if !self.revocations.is_current() {
                    return Err(Refused::Unavailable("what was revoked is not known".to_owned()));
                }
                self.known.insert(key, found.clone()).await;
                Ok(found.identity.clone())
            }
            Err(why @ (Refused::Invalid(_) | Refused::Unfit(_))) => {
                self.known.invalidate(&key).await;
                self.refused.insert(key, why.clone()).await;
                Err(why)
            }
            Err(unavailable) => match known {
                Some(known)
                    if is_current
                        && known.good_until.is_some_and(|until| Instant::now() < until)
                        && !known.identity.keys.iter().any(|key| self.revocations.is_revoked(key)) =>
                {
                    Ok(known.identity.clone())
                }
                _ => Err(unavailable),
            },
        }
    }

    async fn look_up(&self, credential: &str, endpoint: Option<&str>) -> Result<Arc<Known>, Refused> {
        if credential.starts_with(token::PREFIX) {
            return match token::parse(credential) {
                Some(SecretKind::Personal | SecretKind::Service) => {
                    self.issued_token(credential, endpoint).await
                }
                Some(_) => Err(Refused::Invalid("it is no token for endpoints")),
                None => Err(Refused::Invalid("its checksum is wrong")),
            };
        }
        let Some(token) = Unverified::read(credential) else {
            return self.opaque_token(credential, endpoint).await;
        };
        let issuer = self.issuers.iter().find(|issuer| issuer.policy.issuer == token.issuer());
        let issuer = issuer.ok_or(Refused::Invalid("its issuer is not known"))?;
        token.fits(&issuer.policy).map_err(Refused::Invalid)?;
        let (kid, algorithm) = token.key();
        let key = issuer.keys.key(kid, algorithm).await.map_err(|e| Refused::Unavailable(e.to_string()))?;
        let key = key.ok_or(Refused::Invalid("its key is not known"))?;
        let resource = self.resource(endpoint);
        let claims = token.verify(&issuer.policy, &key, &resource)?;
        let client = claims.client().ok_or(Refused::Unfit("it names no client"))?.to_owned();
        let kind = if claims.sub == client { Kind::Service } else { Kind::User };
        let mut keys = Vec::new();
        let credential = match (&issuer.own, claims.grant()) {
            (Some(clients), Some(grant)) => {
                keys.push(RevocationKey::grant(grant));
                match (claims.user_version(), kind, claims.client_version()) {
                    (Some(version), ..) => keys.push(RevocationKey::user(&claims.sub, version)),
                    (None, Kind::Service, Some(_)) => {}
                    _ => return Err(Refused::Unfit("it lacks a claim")),
                }
                if let Some(version) = claims.client_version() {
                    let key = clients.key(&client, version);
                    keys.push(key.ok_or(Refused::Unfit("its client is gone, or is another now"))?);
                }
                if let Some(refresh) = claims.refresh() {
                    // Its answer has arrived. Being late with this does no harm.
                    self.note_seen(refresh.to_owned());
                }
                Credential::Grant { id: grant.to_owned(), refresh: claims.refresh().map(str::to_owned) }
            }
            (Some(_), None) => return Err(Refused::Unfit("it lacks a claim")),
            (None, _) => Credential::External,
        };
        #[expect(clippy::cast_possible_truncation, reason = "seconds")]
        let ends = Time::from_timestamp(claims.exp as i64 + i64::try_from(LEEWAY).unwrap_or(0), 0);
        // Who another issuer's subjects are is not in the records.
        let user = match issuer.own.is_some() && self.needs_users.load(Ordering::Acquire) {
            true => self.records.user(&claims.sub).await?,
            false => None,
        };
        let principal = context(&claims.iss, &claims.sub, &client, &resource, kind);
        let identity = Identity {
            principal: principal.of(Subject {
                kind: match kind {
                    _ if issuer.own.is_none() => SubjectKind::External,
                    Kind::User => SubjectKind::User,
                    Kind::Service => SubjectKind::Service,
                },
                id: claims.sub.clone(),
                client: client.clone(),
            }),
            caller: shown(kind, &claims.sub, &client, &credential),
            issuer: claims.iss.clone(),
            subject: claims.sub.clone(),
            kind,
            client,
            credential,
            scopes: claims.scopes(),
            known_as: user.as_ref().map(|user| user.subject.clone()),
            groups: user.map_or_else(|| claims.groups(&issuer.policy.groups_claim), |user| user.groups),
            expires_at: Some(ends.ok_or(Refused::Unfit("its end is no time"))?),
            networks: Vec::new(),
            keys,
        };
        Ok(Arc::new(Known { identity: Arc::new(identity), fresh_until: None, good_until: None }))
    }

    async fn opaque_token(&self, credential: &str, endpoint: Option<&str>) -> Result<Arc<Known>, Refused> {
        let mut asked =
            self.issuers.iter().filter_map(|issuer| Some((&issuer.policy, issuer.introspection.as_ref()?)));
        let (policy, introspection) = asked.next().ok_or(Refused::Invalid("it is malformed"))?;
        let (key, resource) = (digest(credential, endpoint), self.resource(endpoint));
        let active = introspection.ask(credential, key, policy, &resource).await?;
        let kind = if active.subject == active.client { Kind::Service } else { Kind::User };
        let identity = Identity {
            principal: context(&policy.issuer, &active.subject, &active.client, &resource, kind).of(
                Subject {
                    kind: SubjectKind::External,
                    id: active.subject.clone(),
                    client: active.client.clone(),
                },
            ),
            caller: shown(kind, &active.subject, &active.client, &Credential::External),
            issuer: policy.issuer.clone(),
            subject: active.subject.clone(),
            kind,
            client: active.client.clone(),
            credential: Credential::External,
            scopes: active.scopes.clone(),
            known_as: None,
            groups: active.groups.clone(),
            expires_at: active.expires_at.and_then(|end| Time::from_timestamp(end, 0)),
            networks: Vec::new(),
            keys: Vec::new(),
        };
        let until = Some(active.asked + opaque::KEPT);
        Ok(Arc::new(Known { identity: Arc::new(identity), fresh_until: until, good_until: until }))
    }

    async fn issued_token(&self, secret: &str, endpoint: Option<&str>) -> Result<Arc<Known>, Refused> {
        let looked_up = Instant::now();
        let found = self.records.token_by_secret(&token::hash(secret)).await?;
        let (token, owner) = found.ok_or(Refused::Invalid("there is no such token"))?;
        let now = Utc::now();
        usable(&token, owner.as_ref(), now)?;
        let here = endpoint.unwrap_or_default();
        let is_for_here = if token.endpoints.is_empty() {
            endpoint.is_none()
        } else {
            token.endpoints.iter().any(|name| name == "*" || name == here)
        };
        if !is_for_here {
            return Err(Refused::Unfit("it is for another endpoint"));
        }
        let (kind, subject, issuer) = match (&owner, &token.service) {
            (Some(user), _) => (Kind::User, user.id.clone(), user.issuer.clone()),
            (None, Some(service)) => (Kind::Service, service.clone(), "service".to_owned()),
            (None, None) => return Err(Refused::Unfit("it is nobody's")),
        };
        let networks: Option<Vec<IpNet>> = token.networks.iter().map(|text| text.parse().ok()).collect();
        let networks = networks.ok_or(Refused::Unfit("its networks can't be read"))?;
        let client = format!("pat:{}", token.chain);
        let mut keys = vec![RevocationKey::token(&token.id, token.version)];
        keys.extend(owner.as_ref().map(|user| RevocationKey::user(&user.id, user.version)));
        let principal = context(&issuer, &subject, &client, &self.resource(endpoint), kind);
        let credential = Credential::Token(token.id);
        let identity = Identity {
            principal: principal.of(Subject {
                kind: if kind == Kind::User { SubjectKind::User } else { SubjectKind::Service },
                id: subject.clone(),
                client: client.clone(),
            }),
            caller: shown(kind, &subject, &client, &credential),
            issuer,
            subject,
            kind,
            client,
            credential,
            scopes: Scopes::new(token.scopes),
            known_as: owner.as_ref().map(|user| user.subject.clone()),
            groups: owner.map_or(token.groups, |user| user.groups),
            expires_at: token.expires_at,
            networks,
            keys,
        };
        Ok(Arc::new(Known {
            identity: Arc::new(identity),
            fresh_until: Some(looked_up + FRESH),
            good_until: Some(looked_up + STALE),
        }))
    }

    /// The admin token with this secret.
    ///
    /// # Errors
    ///
    /// If it is none that is good now, or that can't be told.
    pub async fn admin_token(&self, secret: &str) -> Result<Token, Refused> {
        if token::parse(secret) != Some(SecretKind::Admin) {
            return Err(Refused::Invalid("it is no admin token"));
        }
        let found = self.records.token_by_secret(&token::hash(secret)).await?;
        let (token, owner) = found.ok_or(Refused::Invalid("there is no such token"))?;
        usable(&token, owner.as_ref(), Utc::now())?;
        if token.kind != TokenKind::Admin {
            return Err(Refused::Unfit("it is no admin token"));
        }
        self.note_use(&token.id, None);
        Ok(token)
    }

    /// The user who signs in with this token from `address`, and what is revoked with the token.
    ///
    /// # Errors
    ///
    /// If nobody does, or that can't be told.
    pub async fn sign_in(
        &self,
        secret: &str,
        address: Option<IpAddr>,
    ) -> Result<(User, RevocationKey), Refused> {
        if !matches!(token::parse(secret), Some(SecretKind::Personal)) {
            return Err(Refused::Invalid("it is no personal token"));
        }
        let found = self.records.token_by_secret(&token::hash(secret)).await?;
        let (token, owner) = found.ok_or(Refused::Invalid("there is no such token"))?;
        usable(&token, owner.as_ref(), Utc::now())?;
        if !token.scopes.contains(scope::LOGIN) {
            return Err(Refused::Unfit("it lacks the scope login"));
        }
        if !token.may_come_from(address) {
            return Err(Refused::Unfit("it is not accepted from this address"));
        }
        self.note_use(&token.id, address);
        let key = RevocationKey::token(&token.id, token.version);
        owner.map(|owner| (owner, key)).ok_or(Refused::Unfit("it is nobody's"))
    }

    /// The grant that an access token of the gateway's own is of, whatever has become of that since.
    pub async fn grant_of(&self, credential: &str) -> Option<GrantOfToken> {
        let token = Unverified::read(credential)?;
        let mut own = self.issuers.iter().filter(|issuer| issuer.own.is_some());
        let own = own.find(|issuer| issuer.policy.issuer == token.issuer())?;
        token.fits(&own.policy).ok()?;
        let (kid, algorithm) = token.key();
        let key = own.keys.key(kid, algorithm).await.ok()??;
        let claims = token.own(&own.policy, &key)?;
        let id = claims.grant()?.to_owned();
        match (claims.client_id.filter(|client| *client == claims.sub), claims.rest.get("ver")) {
            (Some(client), None) => Some(GrantOfToken::Own { id, client }),
            _ => Some(GrantOfToken::Recorded(id)),
        }
    }

    /// Notes that what came with a refresh token has arrived. Nobody waits for that.
    fn note_seen(&self, refresh: String) {
        let (records, revocations, now) = (self.records.clone(), self.revocations.clone(), Utc::now());
        self.tasks.spawn("note a use", async move {
            let noted = async {
                let Some(grant) = records.refresh_seen(&refresh, now).await? else { return Ok(()) };
                tracing::warn!(
                    grant.id = grant,
                    "refresh_reuse: tokens are used that seemed lost and were given anew; their grant is revoked"
                );
                records.revoke_grant(&grant, "refresh_reuse", now).await?;
                let revocation = Revocation { key: RevocationKey::grant(&grant), until: now + MAX_LIFETIME };
                revocations.revoke(&[revocation]).await.map(drop)
            };
            if let Err(why) = noted.await {
                tracing::debug!("the use of an access token was not noted: {why}");
            }
        });
    }

    fn note_use(&self, id: &str, address: Option<IpAddr>) {
        let mut uses = self.uses.lock();
        match uses.get_mut(id) {
            Some(last) => *last = (Utc::now(), address),
            None => {
                uses.insert(id.to_owned(), (Utc::now(), address));
            }
        }
    }

    /// Writes down when which tokens were used. To be called now and then.
    pub async fn flush_uses(&self) {
        let uses = std::mem::take(&mut *self.uses.lock());
        if uses.is_empty() {
            return;
        }
        let rows: Vec<_> = uses.into_iter().map(|(id, (at, address))| (id, at, address)).collect();
        if let Err(why) = self.records.touch_tokens(&rows).await {
            tracing::warn!("when tokens were last used was not written down: {why}");
            let mut uses = self.uses.lock();
            for (id, at, address) in rows {
                uses.entry(id).or_insert((at, address));
            }
        }
    }
}

fn usable(token: &Token, owner: Option<&User>, now: Time) -> Result<(), Refused> {
    match token.status(now) {
        TokenStatus::Active => {}
        TokenStatus::Expired => return Err(Refused::Unfit(EXPIRED)),
        TokenStatus::Revoked => return Err(Refused::Unfit(REVOKED)),
    }
    if token.owner.is_some() && owner.is_none_or(|owner| owner.disabled_at.is_some()) {
        return Err(Refused::Unfit("its owner is disabled"));
    }
    Ok(())
}

/// By what a credential at an endpoint is remembered: the text itself is nowhere.
fn digest(credential: &str, endpoint: Option<&str>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(credential);
    hash.update([0]);
    hash.update(endpoint.unwrap_or_default());
    hash.finalize().into()
}
