//! The port for durable records: who may, and what was given to whom. What is written here survives everything; the
//! adapters are in the crate `sql`, for SQLite and PostgreSQL, under one contract suite.
//!
//! Secrets are never in a record: what is looked up by a secret is looked up by its [hash](SecretHash).

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::revoking::RevocationKey;
use crate::token::TokenKind;

/// A point in time. Adapters keep whole microseconds.
pub type Time = DateTime<Utc>;

/// What a secret is kept and looked up by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(pub [u8; 32]);

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

/// Why records can't be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// The database can't be reached, or took too long. It may be back soon.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// What is there can't be understood or was refused; coming back does not help.
    #[error("the database refused: {0}")]
    Refused(String),
}

/// What comes of asking for records.
pub type Result<T, E = RecordsError> = std::result::Result<T, E>;

/// Somebody who has logged in, or was made by an administrator (issuer `local`). Whoever comes with the same
/// `(issuer, subject)` is the same user; an e-mail address is for display only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Opaque.
    pub id: String,
    /// Who vouches for the subject.
    pub issuer: String,
    /// Whom the issuer means.
    pub subject: String,
    /// For display.
    pub email: Option<String>,
    /// For display.
    pub name: Option<String>,
    /// As the issuer said last.
    pub groups: BTreeSet<String>,
    /// Counts up whenever all that was given to the user must be looked at anew.
    pub version: i64,
    /// When the user was made.
    pub created_at: Time,
    /// When the issuer last said who this is.
    pub claims_at: Option<Time>,
    /// Since when the user may do nothing.
    pub disabled_at: Option<Time>,
}

/// What an identity provider says of a user who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserClaims {
    /// The provider.
    pub issuer: String,
    /// Whom it means.
    pub subject: String,
    /// For display.
    pub email: Option<String>,
    /// For display.
    pub name: Option<String>,
    /// Groups, all of them.
    pub groups: BTreeSet<String>,
}

/// A token that an administrator has issued, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Opaque.
    pub id: String,
    /// What it is good for.
    pub kind: TokenKind,
    /// For people.
    pub name: String,
    /// The id of the user that it acts as; not for services.
    pub owner: Option<String>,
    /// The name of the service that it acts as.
    pub service: Option<String>,
    /// The last four characters.
    pub hint: String,
    /// What it may do.
    pub scopes: BTreeSet<String>,
    /// Where: names of endpoints, empty for the default one, `*` for all.
    pub endpoints: BTreeSet<String>,
    /// From which networks, in CIDR notation; empty for all.
    pub networks: BTreeSet<String>,
    /// The groups of a service.
    pub groups: BTreeSet<String>,
    /// The id of the first token of its chain of rotations: its own if it is the first.
    pub chain: String,
    /// Counts up whenever it must be looked at anew.
    pub version: i64,
    /// By whom.
    pub created_by: String,
    /// When.
    pub created_at: Time,
    /// Until when it is good, if not for ever.
    pub expires_at: Option<Time>,
    /// Up to a minute late.
    pub last_used_at: Option<Time>,
    /// From where it was used last.
    pub last_used_from: Option<String>,
    /// Since when it is no longer good.
    pub revoked_at: Option<Time>,
    /// By whom.
    pub revoked_by: Option<String>,
    /// The id of its successor.
    pub rotated_to: Option<String>,
}

/// Which tokens a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenFilter {
    /// Only this user's.
    pub owner: Option<String>,
    /// Only of this kind.
    pub kind: Option<TokenKind>,
    /// Only those that are in one of these states at `now`; empty for all.
    pub status: Vec<TokenStatus>,
}

/// The state of a token at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenStatus {
    /// It is good.
    Active,
    /// Its time has passed.
    Expired,
    /// It was revoked.
    Revoked,
}

impl Token {
    /// Whether it is accepted from `address`. Networks that can't be read are none.
    pub fn may_come_from(&self, address: Option<IpAddr>) -> bool {
        let mut networks = self.networks.iter().filter_map(|text| text.parse::<IpNet>().ok());
        self.networks.is_empty()
            || address
                .is_some_and(|address| networks.any(|network| network.contains(&address.to_canonical())))
    }

    /// Its state at `now`.
    pub fn status(&self, now: Time) -> TokenStatus {
        match (self.revoked_at, self.expires_at) {
            (Some(_), _) => TokenStatus::Revoked,
            (None, Some(end)) if end <= now => TokenStatus::Expired,
            _ => TokenStatus::Active,
        }
    }
}

/// A part of a list that is ordered by id, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// At most as many as were asked for.
    pub items: Vec<T>,
    /// The id after which the next part begins, if there is more.
    pub next: Option<String>,
}

/// Where a part of a list begins and how long it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// After this id; at the newest without.
    pub after: Option<String>,
    /// The most items.
    pub limit: u32,
}

/// An OAuth client that has registered, or that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OAuthClient {
    /// The `client_id`.
    pub id: String,
    /// The registered metadata, as RFC 7591 names its members.
    pub metadata: Value,
    /// Since when.
    pub created_at: Time,
    /// When it last got a token, up to an hour late.
    pub last_used_at: Option<Time>,
    /// Since when it may do nothing.
    pub disabled_at: Option<Time>,
}

/// What a user lets a client do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Opaque.
    pub id: String,
    /// Whose.
    pub user: String,
    /// Whose `client_id`.
    pub client: String,
    /// For display.
    pub client_name: Option<String>,
    /// The resource that its tokens are for.
    pub resource: String,
    /// What.
    pub scopes: BTreeSet<String>,
    /// When the user logged in.
    pub auth_time: Time,
    /// When the user agreed.
    pub created_at: Time,
    /// When it was last used to get a token.
    pub last_used_at: Time,
    /// Until when it can be refreshed at most.
    pub expires_at: Time,
    /// Since when it is no longer good.
    pub revoked_at: Option<Time>,
    /// Why.
    pub revoke_reason: Option<String>,
}

/// Which grants a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantFilter {
    /// Only this user's.
    pub user: Option<String>,
    /// Only this client's.
    pub client: Option<String>,
    /// Those that were revoked, or are past their end at this time, too.
    pub ended: bool,
}

/// A refresh token that is to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRefresh {
    /// Opaque; access tokens name it as `rid`.
    pub id: String,
    /// Of the secret.
    pub hash: SecretHash,
    /// When it is no longer good if it isn't used.
    pub expires_at: Time,
}

/// What comes of redeeming a code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redeemed {
    /// The grant is there now.
    Granted,
    /// It was there before: the code has been used. As it is now.
    Before(Box<Grant>),
}

/// What is presented to get new tokens for.
#[derive(Debug, Clone)]
pub struct Presented<'a> {
    /// Of the secret.
    pub hash: SecretHash,
    /// By which client.
    pub client: &'a str,
    /// When.
    pub now: Time,
    /// For how long after its use a refresh token is answered as then.
    pub grace: chrono::Duration,
    /// What takes its place.
    pub successor: NewRefresh,
    /// The successor's secret, sealed under the presented token's, for whoever presents that again.
    pub replay: Vec<u8>,
}

/// What comes of presenting a refresh token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refreshed {
    /// The successor has taken its place.
    Rotated(Box<(Grant, User)>),
    /// It was used a moment ago (or its answer never arrived): the successor that was given then.
    Again {
        /// Whose.
        grant: Box<(Grant, User)>,
        /// The successor's id.
        id: String,
        /// What [`Presented::replay`] was then.
        replay: Vec<u8>,
    },
    /// There is no such token, it is past its time, or its grant or user is no longer good.
    Dead,
    /// It is another client's. Nothing was changed.
    OtherClient(Box<Grant>),
    /// It was used long ago and what came of it is in use, or it was replaced since nobody seemed to have it: somebody
    /// has a copy. The grant is revoked now.
    Reused(Box<Grant>),
}

/// A key that access tokens are signed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Names it.
    pub kid: String,
    /// The algorithm, as JOSE names it.
    pub algorithm: String,
    /// Sealed.
    pub private: String,
    /// A JWK.
    pub public: Value,
    /// When it begins to sign.
    pub not_before: Time,
    /// When it signs no longer.
    pub retires_at: Time,
}

/// Something that was revoked, for as long as it could be presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Revocation {
    /// What.
    pub key: RevocationKey,
    /// Until then.
    pub until: Time,
}

/// Durable records. Every method waits for the database for a bounded time; what it changes is on disk when it returns.
#[async_trait]
pub trait Records: Send + Sync {
    /// Whether the database answers.
    async fn ping(&self) -> Result<()>;

    /// The user of these claims, made or brought up to date. A change of groups counts the version up.
    async fn enter_user(&self, id_if_new: &str, claims: &UserClaims, now: Time) -> Result<User>;
    /// A user.
    async fn user(&self, id: &str) -> Result<Option<User>>;
    /// The user that an issuer means.
    async fn user_of(&self, issuer: &str, subject: &str) -> Result<Option<User>>;
    /// Users.
    async fn users(&self, page: &PageRequest) -> Result<Page<User>>;
    /// Counts the version of a user up, so that nothing that was given out for it is good any more; the version before.
    /// `None` if there is no such user.
    async fn raise_user_version(&self, id: &str) -> Result<Option<i64>>;
    /// Disables a user, or enables one again. Counts the version up if that changes something; returns the user as
    /// before and after.
    async fn set_user_disabled(&self, id: &str, disabled: bool, now: Time) -> Result<Option<(User, User)>>;

    /// Keeps a new token.
    async fn add_token(&self, token: &Token, hash: &SecretHash) -> Result<()>;
    /// The token with this secret, whatever has become of it, and its owner.
    async fn token_by_secret(&self, hash: &SecretHash) -> Result<Option<(Token, Option<User>)>>;
    /// A token.
    async fn token(&self, id: &str) -> Result<Option<Token>>;
    /// Tokens.
    async fn tokens(&self, filter: &TokenFilter, page: &PageRequest, now: Time) -> Result<Page<Token>>;
    /// Revokes a token, unless it is already. Returns it as it was before.
    async fn revoke_token(&self, id: &str, by: &str, now: Time) -> Result<Option<Token>>;
    /// Keeps `successor`, lets the token with this id end at `end` or when it would have, and counts its version up.
    /// Returns it as it was before; `None`, and nothing is done, if it is not active or already has a successor.
    async fn rotate_token(
        &self,
        id: &str,
        successor: &Token,
        hash: &SecretHash,
        end: Time,
        now: Time,
    ) -> Result<Option<Token>>;
    /// Notes when tokens (by id) were last used and from where. Never goes back in time.
    async fn touch_tokens(&self, uses: &[(String, Time, Option<IpAddr>)]) -> Result<()>;
    /// Whether there is an active token of this kind whose name is not `except`.
    async fn has_token(&self, kind: TokenKind, except: &str, now: Time) -> Result<bool>;

    /// Keeps a client. If there is one without a secret under the same `digest` of its metadata, that one is
    /// returned instead. `secret` is what it authenticates with.
    async fn add_client(
        &self,
        client: &OAuthClient,
        digest: &[u8; 32],
        secret: Option<&SecretHash>,
    ) -> Result<OAuthClient>;
    /// A client and the hash of its secret.
    async fn client(&self, id: &str) -> Result<Option<(OAuthClient, Option<SecretHash>)>>;
    /// Clients.
    async fn clients(&self, page: &PageRequest) -> Result<Page<OAuthClient>>;
    /// How many clients there are that never got a token.
    async fn unused_clients(&self) -> Result<u64>;
    /// Forgets clients without a grant that were made before `made` and never used. Returns how many.
    async fn forget_unused_clients(&self, made: Time) -> Result<u64>;
    /// Notes that a client has got a token.
    async fn touch_client(&self, id: &str, now: Time) -> Result<()>;
    /// Disables a client, or enables one again. `None` if there is none.
    async fn set_client_disabled(&self, id: &str, disabled: bool, now: Time) -> Result<Option<OAuthClient>>;
    /// Forgets a client; its grants are to be revoked first. Returns whether there was one.
    async fn remove_client(&self, id: &str) -> Result<bool>;

    /// Keeps a grant and its first refresh token, unless there is one with that id (a code names its grant). A burnt
    /// code is a grant that is revoked from the beginning.
    async fn redeem(&self, grant: &Grant, refresh: Option<&NewRefresh>) -> Result<Redeemed>;
    /// A grant.
    async fn grant(&self, id: &str) -> Result<Option<Grant>>;
    /// Grants.
    async fn grants(&self, filter: &GrantFilter, page: &PageRequest, now: Time) -> Result<Page<Grant>>;
    /// Revokes a grant, unless it is already. Returns it as it was before.
    async fn revoke_grant(&self, id: &str, reason: &str, now: Time) -> Result<Option<Grant>>;
    /// Presents a refresh token, in one transaction that no other of the same grant runs beside.
    async fn refresh(&self, presented: &Presented<'_>) -> Result<Refreshed>;
    /// The grant of a refresh token.
    async fn grant_of_refresh(&self, hash: &SecretHash) -> Result<Option<Grant>>;
    /// Notes that an access token was seen that came with this refresh token (by id): its answer has arrived.
    /// The grant, if the token was replaced since that seemed lost: two have it, and it is to be revoked.
    async fn refresh_seen(&self, id: &str, now: Time) -> Result<Option<String>>;

    /// All signing keys whose tokens may still be presented, the oldest first.
    async fn signing_keys(&self, retired_after: Time) -> Result<Vec<SigningKey>>;
    /// Keeps a signing key.
    async fn add_signing_key(&self, key: &SigningKey) -> Result<()>;

    /// Keeps revocations. Known ones last as long as the longer.
    async fn add_revocations(&self, revocations: &[Revocation], now: Time) -> Result<()>;
    /// What was revoked at or after `since` and is not over at `now`; all of that without `since`.
    async fn revocations(&self, since: Option<Time>, now: Time) -> Result<Vec<Revocation>>;

    /// Forgets what can matter to nobody any more: revocations that are over, refresh tokens and grants that ended
    /// more than thirty days ago. Returns how many rows went.
    async fn sweep(&self, now: Time) -> Result<u64>;
}
