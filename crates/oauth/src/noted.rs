//! What of logins goes into the audit trail: who has signed in, who was not let in, what users have agreed to, and what
//! clients have ended. An entry that can't be written keeps nobody out: the trail says that one is missing.

use std::net::IpAddr;

use drawbridge_auth::audit::Event;
use drawbridge_auth::records::{Grant, Token, User};
use drawbridge_auth::scope::Scopes;
use serde_json::{Value, json};

use crate::Inner;
use crate::text::printable;
use crate::transaction::Transaction;

/// Somebody signs in, or is not let in.
const SIGN_IN: &str = "user.sign_in";
/// What somebody signs in with where a client brings it.
const ASSERTION: &str = "assertion";
/// Of whom nothing is known.
const NOBODY: &str = "anonymous";

impl Inner {
    async fn note(&self, event: Event<'_>) {
        let (actor, action, target, outcome) = (event.actor, event.action, event.target, event.outcome);
        let noted = self.trail.append(std::slice::from_ref(&event)).await;
        if let Err(error) = noted {
            tracing::error!(actor, action, target, outcome, "it is not in the audit trail: {error}");
        }
    }

    /// A user has signed in.
    pub(crate) async fn note_sign_in(&self, user: &User, by_token: bool) {
        let (actor, detail) = (format!("user:{}", user.id), json!({ "with": with(by_token) }));
        self.note(Event { actor: &actor, action: SIGN_IN, target: &user.id, outcome: "ok", detail }).await;
    }

    /// Somebody was not let in.
    pub(crate) async fn note_turned_away(&self, outcome: &str, why: &str, address: Option<IpAddr>) {
        let address = address.map(|address| address.to_canonical().to_string());
        let by_token = self.provider.is_none();
        let detail = json!({ "with": with(by_token), "why": printable(why, 200), "address": address });
        self.note(Event { actor: NOBODY, action: SIGN_IN, target: "", outcome, detail }).await;
    }

    /// An identity provider has let a client act for one of its users.
    pub(crate) async fn note_assertion(&self, grant: &Grant, issuer: &str) {
        let actor = format!("user:{}", grant.user);
        let detail = json!({ "with": ASSERTION, "issuer": issuer, "client": printable(&grant.client, 256),
            "grant": grant.id, "resource": grant.resource, "scopes": grant.scopes });
        self.note(Event { actor: &actor, action: SIGN_IN, target: &grant.user, outcome: "ok", detail }).await;
    }

    /// What a client has brought of an identity provider was not taken.
    pub(crate) async fn note_bad_assertion(&self, client: &str, why: &str) {
        let actor = format!("client:{}", printable(client, 256));
        let detail = json!({ "with": ASSERTION, "why": printable(why, 200) });
        self.note(Event { actor: &actor, action: SIGN_IN, target: "", outcome: "refused", detail }).await;
    }

    /// A user has answered what a client wants.
    pub(crate) async fn note_consent(
        &self,
        user: &str,
        transaction: &Transaction,
        granted: Option<&[String]>,
    ) {
        let actor = format!("user:{user}");
        let action = if granted.is_some() { "consent.give" } else { "consent.deny" };
        let mut detail = json!({ "endpoint": transaction.endpoint, "redirect_uri": printable(&transaction.redirect_uri, 200) });
        if let Some(scopes) = granted {
            detail["grant"] = json!(transaction.id);
            detail["scopes"] = json!(scopes);
        }
        let target = printable(&transaction.client, 256);
        self.note(Event { actor: &actor, action, target: &target, outcome: "ok", detail }).await;
    }

    /// A client has got a token for itself.
    pub(crate) async fn note_own_token(&self, client: &str, id: &str, resource: &str, scopes: &Scopes) {
        let actor = format!("client:{}", printable(client, 256));
        let detail = json!({ "resource": resource, "scopes": scopes.as_set() });
        self.note(Event { actor: &actor, action: "client.token", target: id, outcome: "ok", detail }).await;
    }

    /// A client has ended what it has got for itself.
    pub(crate) async fn note_own_end(&self, client: &str, id: &str) {
        let actor = format!("client:{}", printable(client, 256));
        let detail = json!({ "reason": "revoked_by_client" });
        self.note(Event { actor: &actor, action: "grant.revoke", target: id, outcome: "ok", detail }).await;
    }

    /// A user has made or ended a token of their own.
    pub(crate) async fn note_token(&self, user: &str, action: &str, token: &Token) {
        let actor = format!("user:{user}");
        let detail = json!({ "kind": token.kind, "name": token.name, "owner": token.owner, "scopes": token.scopes,
            "endpoints": token.endpoints, "expires_at": token.expires_at });
        self.note(Event { actor: &actor, action, target: &token.id, outcome: "ok", detail }).await;
    }

    /// A client has ended what it was granted, or what it did has.
    pub(crate) async fn note_end(&self, grant: &Grant, reason: &str) {
        let actor = format!("client:{}", printable(&grant.client, 256));
        let detail = json!({ "reason": reason, "user": grant.user });
        self.note(Event { actor: &actor, action: "grant.revoke", target: &grant.id, outcome: "ok", detail })
            .await;
    }
}

fn with(by_token: bool) -> Value {
    json!(if by_token { "token" } else { "provider" })
}
