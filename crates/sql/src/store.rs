//! The port, method by method: which connection each takes, and for how long.

use std::fmt;
use std::net::IpAddr;

use async_trait::async_trait;
use drawbridge_auth::records::{
    Grant, GrantFilter, NewRefresh, OAuthClient, Page, PageRequest, Presented, Records, Redeemed, Refreshed,
    Result, Revocation, SecretHash, SigningKey, Time, Token, TokenFilter, User, UserClaims,
};
use drawbridge_auth::token::TokenKind;

use crate::database::{Database, Place, SqlOptions};
use crate::error::{MigrationError, UrlError};
use crate::pools::Pools;
use crate::{clients, grants, keys, migrations, refresh, revocations, sweep, tokens, users};

/// How many uses of tokens one transaction notes.
const USES: usize = 100;

/// Durable records in a database.
pub struct SqlRecords {
    pools: Pools,
    shown: String,
}

impl fmt::Debug for SqlRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlRecords").field("database", &self.shown).finish_non_exhaustive()
    }
}

impl SqlRecords {
    /// Records in the database at `url`: `sqlite:PATH`, `sqlite::memory:` or `postgres://user:password@host/name`.
    /// Nothing is connected to yet, so this can be done while the database is away. To be called on a Tokio runtime.
    ///
    /// A file of SQLite and its directory are made if they are missing, for this user alone.
    pub fn open(url: &str, options: &SqlOptions) -> Result<Self, UrlError> {
        let place = Place::parse(url)?;
        Ok(Self { pools: Pools::open(&place, options), shown: place.shown })
    }

    /// Which kind it is.
    pub fn database(&self) -> Database {
        self.pools.database
    }

    /// Where it is, for people: without user and password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The names of the migrations that the database lacks.
    pub async fn pending(&self) -> Result<Vec<String>, MigrationError> {
        migrations::pending(&self.pools).await
    }

    /// Applies what the database lacks, and returns the names of that. Others who do the same wait.
    pub async fn migrate(&self) -> Result<Vec<String>, MigrationError> {
        migrations::migrate(&self.pools).await
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Closes all connections once they are no longer used.
    pub async fn close(&self) {
        self.pools.close().await;
    }
}

#[async_trait]
impl Records for SqlRecords {
    async fn ping(&self) -> Result<()> {
        self.pools.read(async |c| sqlx::query("select 1").execute(c).await.map(drop)).await
    }

    async fn enter_user(&self, id_if_new: &str, claims: &UserClaims, now: Time) -> Result<User> {
        self.pools.write(async |c| users::enter(c, id_if_new, claims, now).await).await
    }

    async fn user(&self, id: &str) -> Result<Option<User>> {
        self.pools.read(async |c| users::find(c, id).await).await
    }

    async fn user_of(&self, issuer: &str, subject: &str) -> Result<Option<User>> {
        self.pools.read(async |c| users::find_by_subject(c, issuer, subject).await).await
    }

    async fn users(&self, page: &PageRequest) -> Result<Page<User>> {
        self.pools.read(async |c| users::page(c, page).await).await
    }

    async fn raise_user_version(&self, id: &str) -> Result<Option<i64>> {
        self.pools.write(async |c| users::raise_version(c, id).await).await
    }

    async fn set_user_disabled(&self, id: &str, disabled: bool, now: Time) -> Result<Option<(User, User)>> {
        self.pools.transact(async |c| users::set_disabled(c, id, disabled, now).await).await
    }

    async fn add_token(&self, token: &Token, hash: &SecretHash) -> Result<()> {
        self.pools.write(async |c| tokens::add(c, token, hash).await).await
    }

    async fn token_by_secret(&self, hash: &SecretHash) -> Result<Option<(Token, Option<User>)>> {
        self.pools.read(async |c| tokens::by_secret(c, hash).await).await
    }

    async fn token(&self, id: &str) -> Result<Option<Token>> {
        self.pools.read(async |c| tokens::find(c, id).await).await
    }

    async fn tokens(&self, filter: &TokenFilter, page: &PageRequest, now: Time) -> Result<Page<Token>> {
        self.pools.read(async |c| tokens::page(c, filter, page, now).await).await
    }

    async fn revoke_token(&self, id: &str, by: &str, now: Time) -> Result<Option<Token>> {
        self.pools.transact(async |c| tokens::revoke(c, id, by, now).await).await
    }

    async fn rotate_token(
        &self,
        id: &str,
        successor: &Token,
        hash: &SecretHash,
        end: Time,
        now: Time,
    ) -> Result<Option<Token>> {
        self.pools.transact(async |c| tokens::rotate(c, id, successor, hash, end, now).await).await
    }

    async fn touch_tokens(&self, uses: &[(String, Time, Option<IpAddr>)]) -> Result<()> {
        for uses in tokens::last_uses(uses).chunks(USES) {
            self.pools.transact(async |c| tokens::touch(c, uses).await).await?;
        }
        Ok(())
    }

    async fn has_token(&self, kind: TokenKind, except: &str, now: Time) -> Result<bool> {
        self.pools.read(async |c| tokens::any_active(c, kind, except, now).await).await
    }

    async fn add_client(
        &self,
        client: &OAuthClient,
        digest: &[u8; 32],
        secret: Option<&SecretHash>,
    ) -> Result<OAuthClient> {
        self.pools.write(async |c| clients::add(c, client, digest, secret).await).await
    }

    async fn client(&self, id: &str) -> Result<Option<(OAuthClient, Option<SecretHash>)>> {
        self.pools.read(async |c| clients::find(c, id).await).await
    }

    async fn clients(&self, page: &PageRequest) -> Result<Page<OAuthClient>> {
        self.pools.read(async |c| clients::page(c, page).await).await
    }

    async fn unused_clients(&self) -> Result<u64> {
        self.pools.read(async |c| clients::count_unused(c).await).await
    }

    async fn forget_unused_clients(&self, made: Time) -> Result<u64> {
        self.pools.write(async |c| clients::forget_unused(c, made).await).await
    }

    async fn touch_client(&self, id: &str, now: Time) -> Result<()> {
        self.pools.write(async |c| clients::touch(c, id, now).await).await
    }

    async fn set_client_disabled(&self, id: &str, disabled: bool, now: Time) -> Result<Option<OAuthClient>> {
        self.pools.write(async |c| clients::set_disabled(c, id, disabled, now).await).await
    }

    async fn remove_client(&self, id: &str) -> Result<bool> {
        self.pools.write(async |c| clients::remove(c, id).await).await
    }

    async fn redeem(&self, grant: &Grant, refresh: Option<&NewRefresh>) -> Result<Redeemed> {
        self.pools.transact(async |c| grants::redeem(c, grant, refresh).await).await
    }

    async fn grant(&self, id: &str) -> Result<Option<Grant>> {
        self.pools.read(async |c| grants::find(c, id).await).await
    }

    async fn grants(&self, filter: &GrantFilter, page: &PageRequest, now: Time) -> Result<Page<Grant>> {
        self.pools.read(async |c| grants::page(c, filter, page, now).await).await
    }

    async fn revoke_grant(&self, id: &str, reason: &str, now: Time) -> Result<Option<Grant>> {
        self.pools.transact(async |c| grants::revoke(c, id, reason, now).await).await
    }

    async fn refresh(&self, presented: &Presented<'_>) -> Result<Refreshed> {
        self.pools.transact(async |c| refresh::present(c, presented).await).await
    }

    async fn grant_of_refresh(&self, hash: &SecretHash) -> Result<Option<Grant>> {
        self.pools.read(async |c| grants::of_refresh(c, hash).await).await
    }

    async fn refresh_seen(&self, id: &str, now: Time) -> Result<Option<String>> {
        self.pools.write(async |c| refresh::seen(c, id, now).await).await
    }

    async fn signing_keys(&self, retired_after: Time) -> Result<Vec<SigningKey>> {
        self.pools.read(async |c| keys::all(c, retired_after).await).await
    }

    async fn add_signing_key(&self, key: &SigningKey) -> Result<()> {
        self.pools.write(async |c| keys::add(c, key).await).await
    }

    async fn add_revocations(&self, revocations: &[Revocation], now: Time) -> Result<()> {
        self.pools.transact(async |c| revocations::add(c, revocations, now).await).await
    }

    async fn revocations(&self, since: Option<Time>, now: Time) -> Result<Vec<Revocation>> {
        self.pools.read(async |c| revocations::since(c, since, now).await).await
    }

    async fn sweep(&self, now: Time) -> Result<u64> {
        sweep::sweep(&self.pools, now).await
    }
}
