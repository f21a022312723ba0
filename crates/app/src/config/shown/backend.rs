//! Backends, and what they are called with.

use serde_json::json;

use super::policies::patterns;
use super::{Sheet, bundles};
use crate::config::model::{
    Backend, BackendAuth, BackendKind, ClientCertificate, ClientCredentials, HttpBackend, IdJag,
    StdioBackend, TokenExchange, TokenSource, UserOAuth, UserSecret,
};

pub(super) fn backend(sheet: &mut Sheet, key: &str, backend: &Backend) {
    let Backend {
        kind,
        era,
        session_scope,
        era_ttl,
        timeout,
        connect_timeout,
        first_byte_timeout,
        idle_timeout,
        list_timeout,
        cache,
        list_ttl,
        read_tools,
        trust_annotations,
        elicitation_hosts,
    } = backend;
    match kind {
        BackendKind::Http(http) => self::http(sheet, key, http),
        BackendKind::Stdio(stdio) => self::stdio(sheet, key, stdio),
    }
    sheet.put(&format!("{key}.era"), era);
    sheet.put(&format!("{key}.session_scope"), session_scope);
    for (name, span) in [
        ("era_ttl", era_ttl),
        ("timeout", timeout),
        ("connect_timeout", connect_timeout),
        ("first_byte_timeout", first_byte_timeout),
        ("idle_timeout", idle_timeout),
        ("list_timeout", list_timeout),
        ("list_ttl", list_ttl),
    ] {
        sheet.span(&format!("{key}.{name}"), *span);
    }
    sheet.put(&format!("{key}.cache"), cache);
    sheet.put(&format!("{key}.read_tools"), patterns(read_tools));
    sheet.put(&format!("{key}.trust_annotations"), trust_annotations);
    sheet.put(&format!("{key}.elicitation_hosts"), patterns(elicitation_hosts));
}

fn http(sheet: &mut Sheet, key: &str, http: &HttpBackend) {
    let HttpBackend {
        url,
        transport,
        headers,
        caller_headers,
        identity_jwt,
        auth,
        client_certificate,
        ca_bundle,
    } = http;
    sheet.address(&format!("{key}.url"), Some(url.as_str()));
    sheet.put(&format!("{key}.transport"), transport);
    sheet.secrets(&format!("{key}.headers"), headers);
    for (name, template) in caller_headers {
        sheet.put(&format!("{key}.caller_headers.{name}"), template);
    }
    sheet.put(&format!("{key}.identity_jwt"), identity_jwt);
    if let Some(auth) = auth {
        self::auth(sheet, &format!("{key}.auth"), auth);
    }
    if let Some(ClientCertificate { certificate, key: private }) = client_certificate.as_deref() {
        sheet.secret(&format!("{key}.client_certificate.certificate"), Some(certificate));
        sheet.secret(&format!("{key}.client_certificate.key"), Some(private));
    }
    sheet.put(&format!("{key}.ca_bundle"), bundles(ca_bundle));
}

fn stdio(sheet: &mut Sheet, key: &str, stdio: &StdioBackend) {
    let StdioBackend {
        command,
        args,
        env,
        cwd,
        max_processes,
        idle_stop,
        max_queue,
        queue_timeout,
        start_timeout,
        stop_grace,
    } = stdio;
    sheet.put(&format!("{key}.command"), command);
    // One of them may be a key.
    sheet.put(&format!("{key}.args"), json!({ "set": !args.is_empty(), "count": args.len() }));
    sheet.secrets(&format!("{key}.env"), env);
    sheet.put(&format!("{key}.cwd"), cwd);
    sheet.put(&format!("{key}.max_processes"), max_processes);
    sheet.span(&format!("{key}.idle_stop"), *idle_stop);
    sheet.put(&format!("{key}.max_queue"), max_queue);
    sheet.span(&format!("{key}.queue_timeout"), *queue_timeout);
    sheet.span(&format!("{key}.start_timeout"), *start_timeout);
    sheet.span(&format!("{key}.stop_grace"), *stop_grace);
}

fn auth(sheet: &mut Sheet, key: &str, auth: &BackendAuth) {
    let kind = match auth {
        BackendAuth::Header { name, value } => {
            sheet.put(&format!("{key}.header"), name);
            sheet.secret(&format!("{key}.value"), Some(value));
            "header"
        }
        BackendAuth::Basic { user, password } => {
            sheet.put(&format!("{key}.user"), user);
            sheet.secret(&format!("{key}.password"), Some(password));
            "basic"
        }
        BackendAuth::ClientCredentials(written) => {
            client_credentials(sheet, key, written);
            "client_credentials"
        }
        BackendAuth::UserOAuth(written) => {
            user_oauth(sheet, key, written);
            "user_oauth"
        }
        BackendAuth::TokenExchange(written) => {
            token_exchange(sheet, key, written);
            "token_exchange"
        }
        BackendAuth::IdJag(written) => {
            id_jag(sheet, key, written);
            "id_jag"
        }
        BackendAuth::UserSecret(UserSecret { header, scheme, help }) => {
            sheet.put(&format!("{key}.header"), header);
            sheet.put(&format!("{key}.scheme"), scheme);
            sheet.address(&format!("{key}.help"), help.as_deref());
            "user_secret"
        }
    };
    sheet.put(&format!("{key}.kind"), kind);
}

fn client_credentials(sheet: &mut Sheet, key: &str, written: &ClientCredentials) {
    let ClientCredentials { from, client_id, client_secret, client_auth, scopes, resource } = written;
    token_source(sheet, key, from);
    sheet.put(&format!("{key}.client_id"), client_id);
    sheet.secret(&format!("{key}.client_secret"), Some(client_secret));
    sheet.put(&format!("{key}.client_auth"), client_auth);
    sheet.put(&format!("{key}.scopes"), scopes);
    sheet.address(&format!("{key}.resource"), resource.as_deref());
}

fn token_source(sheet: &mut Sheet, key: &str, from: &TokenSource) {
    match from {
        TokenSource::Endpoint(url) => sheet.address(&format!("{key}.token_endpoint"), Some(url)),
        TokenSource::Issuer(issuer) => sheet.address(&format!("{key}.issuer"), Some(issuer)),
        TokenSource::Backend => {}
    }
}

fn token_exchange(sheet: &mut Sheet, key: &str, written: &TokenExchange) {
    let TokenExchange { from, client, client_auth, subject_token, audience, resource, scopes } = written;
    if let Some(from) = from {
        token_source(sheet, key, from);
    }
    let secret = client.as_ref().and_then(|(_, secret)| secret.as_ref());
    sheet.put(&format!("{key}.client_id"), client.as_ref().map(|(id, _)| id));
    sheet.secret(&format!("{key}.client_secret"), secret);
    sheet.put(&format!("{key}.client_auth"), client_auth);
    sheet.put(&format!("{key}.subject_token"), subject_token);
    sheet.put(&format!("{key}.audience"), audience);
    sheet.address(&format!("{key}.resource"), resource.as_deref());
    sheet.put(&format!("{key}.scopes"), scopes);
}

fn id_jag(sheet: &mut Sheet, key: &str, written: &IdJag) {
    let IdJag { issuer, client_id, client_secret, client_auth, scopes, resource } = written;
    sheet.address(&format!("{key}.issuer"), Some(issuer));
    sheet.put(&format!("{key}.client_id"), client_id);
    sheet.secret(&format!("{key}.client_secret"), client_secret.as_ref());
    sheet.put(&format!("{key}.client_auth"), client_auth);
    sheet.put(&format!("{key}.scopes"), scopes);
    sheet.address(&format!("{key}.resource"), resource.as_deref());
}

fn user_oauth(sheet: &mut Sheet, key: &str, written: &UserOAuth) {
    let UserOAuth { issuer, client_id, client_secret, scopes, resource } = written;
    sheet.address(&format!("{key}.issuer"), issuer.as_deref());
    sheet.put(&format!("{key}.client_id"), client_id);
    sheet.secret(&format!("{key}.client_secret"), client_secret.as_ref());
    sheet.put(&format!("{key}.scopes"), scopes);
    sheet.address(&format!("{key}.resource"), resource.as_deref());
}
