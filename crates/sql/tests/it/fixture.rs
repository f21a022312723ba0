//! Databases to test with, and records to put there.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta};
use drawbridge_auth::audit::AuditEntry;
use drawbridge_auth::records::{
    Grant, NewRefresh, OAuthClient, PageRequest, Presented, Records, SecretHash, Time, Token, User,
    UserClaims,
};
use drawbridge_auth::token::TokenKind;
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::postgres::PostgresDatabase;
use serde_json::json;
use tempfile::TempDir;

/// A database that two instances have open. In memory it is one that has it twice.
pub(crate) struct Fixture {
    pub(crate) a: Arc<SqlRecords>,
    pub(crate) b: Arc<SqlRecords>,
    /// Where it is.
    pub(crate) url: String,
    _dir: Option<TempDir>,
    _database: Option<PostgresDatabase>,
}

impl Fixture {
    pub(crate) async fn memory() -> Self {
        let a = open("sqlite::memory:").await;
        Self { b: Arc::clone(&a), a, url: "sqlite::memory:".to_owned(), _dir: None, _database: None }
    }

    pub(crate) async fn file() -> Self {
        let dir = TempDir::new().unwrap();
        let url =
            format!("sqlite:{}/new folder/100%25 records?.db", dir.path().display()).replace('?', "%3F");
        let (a, b) = (open(&url).await, open(&url).await);
        Self { a, b, url, _dir: Some(dir), _database: None }
    }

    pub(crate) async fn postgres() -> Self {
        let database = PostgresDatabase::fresh().await;
        let url = database.url();
        let (a, b) = (open(&url).await, open(&url).await);
        Self { a, b, url, _dir: None, _database: Some(database) }
    }

    /// The first instance, as those see it who use it.
    pub(crate) fn records(&self) -> &dyn Records {
        &*self.a
    }
}

async fn open(url: &str) -> Arc<SqlRecords> {
    let records = SqlRecords::open(url, &SqlOptions::default()).unwrap();
    records.migrate().await.unwrap();
    Arc::new(records)
}

/// So many seconds into the tests' time, with microseconds.
pub(crate) fn at(seconds: i64) -> Time {
    DateTime::from_timestamp(1_800_000_000 + seconds, 123_456_000).unwrap()
}

pub(crate) const DAY: i64 = 24 * 60 * 60;

pub(crate) fn set(members: &[&str]) -> BTreeSet<String> {
    members.iter().map(|&member| member.to_owned()).collect()
}

pub(crate) fn hash(of: &str) -> SecretHash {
    drawbridge_auth::token::hash(of)
}

pub(crate) fn page(after: Option<&str>, limit: u32) -> PageRequest {
    PageRequest { after: after.map(str::to_owned), limit }
}

pub(crate) fn claims(subject: &str) -> UserClaims {
    UserClaims {
        issuer: "https://idp.example".to_owned(),
        subject: subject.to_owned(),
        email: Some(format!("{subject}@example.com")),
        name: None,
        groups: set(&["staff"]),
    }
}

/// A user who is there.
pub(crate) async fn user(records: &dyn Records, id: &str) -> User {
    records.enter_user(id, &claims(id), at(0)).await.unwrap()
}

pub(crate) fn token(id: &str) -> Token {
    Token {
        id: id.to_owned(),
        kind: TokenKind::Service,
        name: format!("token {id}"),
        owner: None,
        service: Some("ci".to_owned()),
        hint: "wxyz".to_owned(),
        scopes: set(&["mcp:read"]),
        endpoints: BTreeSet::new(),
        networks: BTreeSet::new(),
        groups: BTreeSet::new(),
        chain: id.to_owned(),
        version: 1,
        created_by: "admin".to_owned(),
        created_at: at(0),
        expires_at: None,
        last_used_at: None,
        last_used_from: None,
        revoked_at: None,
        revoked_by: None,
        rotated_to: None,
    }
}

pub(crate) fn client(id: &str) -> OAuthClient {
    OAuthClient {
        id: id.to_owned(),
        metadata: json!({"client_name": id, "redirect_uris": ["http://127.0.0.1/callback"]}),
        created_at: at(0),
        last_used_at: None,
        disabled_at: None,
    }
}

pub(crate) fn grant(id: &str, user: &str) -> Grant {
    Grant {
        id: id.to_owned(),
        user: user.to_owned(),
        client: "client".to_owned(),
        client_name: Some("A client".to_owned()),
        resource: "https://gateway.example/mcp".to_owned(),
        scopes: set(&["mcp:read", "mcp:write"]),
        auth_time: at(-5),
        created_at: at(0),
        last_used_at: at(0),
        expires_at: at(90 * DAY),
        revoked_at: None,
        revoke_reason: None,
    }
}

/// A refresh token whose secret is `id`, good for thirty days.
pub(crate) fn refresh(id: &str) -> NewRefresh {
    NewRefresh { id: id.to_owned(), hash: hash(id), expires_at: at(30 * DAY) }
}

/// A presentation of the token with the secret `secret`, for which `successor` is offered.
pub(crate) fn present(secret: &str, successor: &str, now: Time) -> Presented<'static> {
    Presented {
        hash: hash(secret),
        client: "client",
        now,
        grace: TimeDelta::seconds(120),
        successor: refresh(successor),
        replay: format!("sealed {successor}").into_bytes(),
    }
}

pub(crate) fn entry(chain: &str, number: i64, at: Time) -> AuditEntry {
    AuditEntry {
        chain: chain.to_owned(),
        number,
        at,
        actor: "admin".to_owned(),
        action: "token.create".to_owned(),
        target: format!("token:{number}"),
        outcome: "ok".to_owned(),
        detail: json!({"z": 1, "a": [null, true, "ü", 1.5]}),
        hash: "00ff".to_owned(),
    }
}
