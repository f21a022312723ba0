//! Who may call.

use serde_json::Value;

use super::{Sheet, told};
use crate::config::model::{Auth, ClientProof, External, IdJagIssuer, Introspection, Login, NamedClient};

pub(super) fn auth(sheet: &mut Sheet, auth: &Auth) {
    let Auth {
        mode,
        name,
        access_token_ttl,
        refresh_idle_ttl,
        refresh_absolute_ttl,
        refresh_grace,
        registration,
        client_documents,
        client_document_hosts,
        redirect_uris,
        login,
        own_tokens,
        id_jag,
        introspection_clients,
        external,
        step_up,
    } = auth;
    sheet.put("auth.mode", mode);
    sheet.put("auth.name", name);
    sheet.span("auth.access_token_ttl", *access_token_ttl);
    sheet.span("auth.refresh_idle_ttl", *refresh_idle_ttl);
    sheet.span("auth.refresh_absolute_ttl", *refresh_absolute_ttl);
    sheet.span("auth.refresh_grace", *refresh_grace);
    sheet.put("auth.registration.dcr", registration);
    sheet.put("auth.registration.cimd", client_documents);
    sheet.put("auth.registration.cimd_hosts", client_document_hosts);
    sheet.put("auth.registration.redirect_uris", redirect_uris);
    match login {
        Some(provider) => self::login(sheet, provider),
        None => sheet.put("auth.login", Value::Null),
    }
    sheet.put("auth.step_up", step_up);
    sheet.put("auth.own_tokens", own_tokens);
    for (index, IdJagIssuer { issuer, jwks_uri }) in id_jag.iter().enumerate() {
        sheet.address(&format!("auth.id_jag[{index}].issuer"), Some(issuer));
        sheet.address(&format!("auth.id_jag[{index}].jwks_uri"), jwks_uri.as_deref());
    }
    for (index, (id, secret)) in introspection_clients.iter().enumerate() {
        let key = format!("auth.introspection_clients[{index}]");
        sheet.put(&format!("{key}.id"), id);
        sheet.put(&format!("{key}.secret"), told(secret));
    }
    for (index, issuer) in external.iter().enumerate() {
        self::external(sheet, &format!("auth.external[{index}]"), issuer);
    }
}

pub(super) fn clients(sheet: &mut Sheet, clients: &[NamedClient]) {
    for (index, client) in clients.iter().enumerate() {
        let NamedClient { id, name, proof, grants, scopes, redirect_uris } = client;
        let key = format!("auth.clients[{index}]");
        sheet.put(&format!("{key}.id"), id);
        sheet.put(&format!("{key}.name"), name);
        match proof {
            ClientProof::Secret(secret) => sheet.put(&format!("{key}.secret"), told(secret)),
            ClientProof::Keys(keys) => sheet.put(&format!("{key}.jwks"), told(keys)),
        }
        sheet.put(&format!("{key}.grants"), grants);
        sheet.put(&format!("{key}.scopes"), scopes);
        sheet.put(&format!("{key}.redirect_uris"), redirect_uris);
    }
}

fn login(sheet: &mut Sheet, login: &Login) {
    let Login { issuer, client_id, client_secret, scopes, groups_claim, allowed_groups } = login;
    sheet.address("auth.login.issuer", Some(issuer));
    sheet.put("auth.login.client_id", client_id);
    sheet.secret("auth.login.client_secret", client_secret.as_ref());
    sheet.put("auth.login.scopes", scopes);
    sheet.put("auth.login.groups_claim", groups_claim);
    sheet.put("auth.login.allowed_groups", allowed_groups);
}

fn external(sheet: &mut Sheet, key: &str, external: &External) {
    let External {
        issuer,
        audiences,
        algorithms,
        types,
        jwks_uri,
        client_ids,
        max_lifetime,
        groups_claim,
        introspection,
    } = external;
    sheet.address(&format!("{key}.issuer"), Some(issuer));
    sheet.put(&format!("{key}.audiences"), audiences);
    sheet.put(&format!("{key}.algorithms"), algorithms);
    sheet.put(&format!("{key}.types"), types);
    sheet.address(&format!("{key}.jwks_uri"), jwks_uri.as_deref());
    sheet.put(&format!("{key}.client_ids"), client_ids);
    sheet.span(&format!("{key}.max_lifetime"), *max_lifetime);
    sheet.put(&format!("{key}.groups_claim"), groups_claim);
    if let Some(Introspection { url, client_id, client_secret }) = introspection {
        sheet.address(&format!("{key}.introspection.url"), Some(url));
        sheet.put(&format!("{key}.introspection.client_id"), client_id);
        sheet.secret(&format!("{key}.introspection.client_secret"), Some(client_secret));
    }
}
