//! The admin API, and whoever asks it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use chrono::{TimeDelta, Utc};
use drawbridge_auth::audit::AuditTrail;
use drawbridge_auth::records::{Records, Token};
use drawbridge_auth::revoking::Revocations;
use drawbridge_auth::token::{self, Secret, SecretKind, TokenKind};
use drawbridge_auth::verifier::Verifier;
use drawbridge_core::Tasks;
use drawbridge_core::state::{MemoryState, SharedState, WithFallback};
use drawbridge_sql::{SqlOptions, SqlRecords};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::api::{Admission, Api, routes};

/// The configured first token.
pub(super) const FIRST: &str = "f0e1d2c3b4a5968778695a4b3c2d1e0f";

pub(super) struct World {
    pub(super) records: Arc<SqlRecords>,
    pub(super) verifier: Arc<Verifier>,
    pub(super) revocations: Arc<Revocations>,
    router: Router,
    /// An admin token that may everything.
    pub(super) admin: String,
}

/// An answer.
pub(super) struct Answer {
    pub(super) response: Response<()>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {:?}", self.text()))
    }

    /// The JSON of an answer with this status.
    pub(super) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status().as_u16(), status, "{}", self.text());
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// The words of a problem with this status.
    pub(super) fn problem(&self, status: u16) -> String {
        let problem = self.expect(status);
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem["status"], status);
        let id = self.header("x-request-id");
        assert!(!id.is_empty() && problem["instance"] == format!("urn:drawbridge:request:{id}"));
        assert!(problem["type"].as_str().unwrap().starts_with("urn:drawbridge:problem:"));
        assert!(!problem["title"].as_str().unwrap().is_empty());
        problem["detail"].as_str().unwrap().to_owned()
    }
}

impl World {
    pub(super) async fn new() -> Self {
        let records = SqlRecords::open("sqlite::memory:", &SqlOptions::default()).unwrap();
        records.migrate().await.unwrap();
        Self::over(records).await
    }

    pub(super) async fn over(records: SqlRecords) -> Self {
        let records = Arc::new(records);
        let shared = MemoryState::new(1 << 20, std::time::Duration::from_secs(60)).instance(false);
        let revocations = Revocations::new(records.clone(), shared.revocations.clone());
        revocations.read().await.unwrap();
        let verifier = Arc::new(Verifier::new(
            None,
            records.clone(),
            revocations.clone(),
            Vec::new(),
            WithFallback::new(shared.limiter.clone()),
            Tasks::default(),
        ));
        let bootstrap = Some(token::hash(FIRST));
        let admission = Admission::Credentials { verifier: verifier.clone(), bootstrap };
        let router = routes(api(&records, &revocations, &shared, admission));
        let mut world = Self { records, verifier, revocations, router, admin: String::new() };
        world.admin = world.admin_with(&["admin:*"]).await;
        world
    }

    /// The same records, without asking who calls.
    pub(super) fn for_anybody(&self) -> Router {
        let shared = MemoryState::new(1 << 20, std::time::Duration::from_secs(60)).instance(false);
        routes(api(&self.records, &self.revocations, &shared, Admission::Anybody { actor: "cli" }))
    }

    /// A new admin token with these scopes.
    pub(super) async fn admin_with(&self, scopes: &[&str]) -> String {
        let secret = Secret::fresh(SecretKind::Admin);
        let token = Token { scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(), ..an_admin() };
        self.records.add_token(&token, &secret.hash()).await.unwrap();
        secret.expose().to_owned()
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }

    /// The answer to a request of the admin that may everything.
    pub(super) async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.ask_as(&self.admin, method, path, &[], body).await
    }

    pub(super) async fn ask_as(
        &self,
        secret: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Answer {
        let mut request = request(method, path).header("authorization", format!("Bearer {secret}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                request.body(Body::from(body.to_string()))
            }
            None => request.body(Body::empty()),
        };
        self.send(request.unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path, Some(body)).await
    }

    /// The id of a new user.
    pub(super) async fn user(&self, subject: &str) -> String {
        let made = self.post("/admin/v1/users", serde_json::json!({ "subject": subject })).await;
        made.expect(201)["id"].as_str().unwrap().to_owned()
    }

    /// A new personal token of `owner`: its id and its secret.
    pub(super) async fn personal(&self, owner: &str) -> (String, String) {
        let new = serde_json::json!({ "kind": "personal", "name": "laptop", "owner": owner });
        let made = self.post("/admin/v1/tokens", new).await.expect(201);
        (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
    }

    /// Whether an endpoint lets a credential in.
    pub(super) async fn lets_in(&self, secret: &str) -> bool {
        self.verifier.verify(secret, None, None).await.is_ok()
    }
}

fn api(
    records: &Arc<SqlRecords>,
    revocations: &Arc<Revocations>,
    shared: &SharedState,
    admission: Admission,
) -> Api {
    Api {
        admission,
        records: records.clone(),
        revocations: revocations.clone(),
        trail: Arc::new(AuditTrail::new(records.clone())),
        audit: records.clone(),
        claims: shared.claims.clone(),
        limiter: shared.limiter.clone(),
        trouble: Arc::new(|| None),
        gateway: None,
    }
}

pub(super) fn request(method: &str, path: &str) -> axum::http::request::Builder {
    let address: SocketAddr = "192.0.2.7:4711".parse().unwrap();
    Request::builder().method(method).uri(path).extension(ConnectInfo(address))
}

pub(super) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Answer { response: Response::from_parts(head, ()), body }
}

pub(super) fn an_admin() -> Token {
    let id = drawbridge_auth::fresh_id();
    Token {
        chain: id.clone(),
        id,
        kind: TokenKind::Admin,
        name: "test".to_owned(),
        owner: None,
        service: None,
        hint: "0000".to_owned(),
        scopes: std::collections::BTreeSet::new(),
        endpoints: std::collections::BTreeSet::new(),
        networks: std::collections::BTreeSet::new(),
        groups: std::collections::BTreeSet::new(),
        version: 0,
        created_by: "test".to_owned(),
        created_at: Utc::now(),
        expires_at: Some(Utc::now() + TimeDelta::days(1)),
        last_used_at: None,
        last_used_from: None,
        revoked_at: None,
        revoked_by: None,
        rotated_to: None,
    }
}
