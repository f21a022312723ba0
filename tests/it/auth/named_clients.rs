//! OAuth clients that the operator has named: tokens that they get for themselves, logins, and the end of both.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use drawbridge_testkit::client::{Client, Reply, Session};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::Gateway;
use drawbridge_testkit::postgres::PostgresDatabase;
use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::external::{Key, keys};
use super::world::{Browser, P, R, Request, VERIFIER, World, oauth_error, post_form};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";
const CALLBACK: &str = "https://app.example.com/callback";
const SOON: Duration = Duration::from_secs(20);

fn nightly(secret: &str) -> String {
    format!("{{ id: nightly, secret: \"{secret}\", grants: [client_credentials], scopes: [\"mcp:read\"] }}")
}

fn of(clients: &str) -> String {
    format!("  clients: [{clients}]\n")
}

async fn ask(client: &Client, form: &[(&str, &str)]) -> Reply {
    let mut all = vec![("grant_type", "client_credentials")];
    all.extend(form);
    post_form(client, "/token", &all).await
}

/// What a client gets for itself at the default endpoint.
async fn token(client: &Client, id: &str, secret: &str) -> String {
    let reply = ask(client, &[("client_id", id), ("client_secret", secret), ("resource", R)]).await;
    assert_eq!((reply.status(), reply.header("cache-control")), (200, Some("no-store")));
    let given = reply.json().await;
    assert_eq!((&given["token_type"], &given["expires_in"]), (&json!("Bearer"), &json!(3600)));
    assert_eq!(given.get("refresh_token"), None);
    given["access_token"].as_str().unwrap().to_owned()
}

/// Writes another configuration for a gateway.
fn rewrite(gateway: &Gateway, change: impl FnOnce(String) -> String) {
    let file = gateway.dir().join("drawbridge.yaml");
    let before = std::fs::read_to_string(&file).unwrap();
    let after = change(before.clone());
    assert_ne!(before, after);
    std::fs::write(&file, after).unwrap();
}

#[tokio::test]
async fn a_client_that_may_gets_a_token_for_itself_and_no_other_does() {
    let key = Key::fresh("k");
    let clients = format!(
        "{}, {{ id: signer, jwks: '{}', grants: [client_credentials] }}, {{ id: web, secret: \"{OTHER}\", grants: [authorization_code], redirect_uris: [\"{CALLBACK}\"] }}",
        nightly(SECRET),
        keys(&[&key])
    );
    let more =
        format!("{}  introspection_clients: [{{ id: tickets, secret: \"{SECRET}\" }}]\n", of(&clients));
    let world = World::over("embedded", &more, |setup| {
        setup.config(&format!("admin: {{ bootstrap_token: {FIRST} }}"))
    })
    .await;
    let client = world.client(0);
    let metadata = client.get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    let types = json!(["authorization_code", "refresh_token", "client_credentials"]);
    assert_eq!(metadata["grant_types_supported"], types);

    // It is a service, which may read, and does not write.
    let access = token(&client, "nightly", SECRET).await;
    assert_eq!(world.status(0, "/mcp", &access).await, 200);
    assert_eq!(world.status(0, "/mcp/dev", &access).await, 401);
    let session = Session::open(&client.bearer(&access), "/mcp", "2025-11-25", json!({})).await;
    // What would write is not there for it.
    assert_eq!(session.tool("echo", json!({ "message": "x" })).await["error"]["code"], -32602);
    let basic = format!("Basic {}", STANDARD.encode(format!("tickets:{SECRET}")));
    let headers = [("content-type", "application/x-www-form-urlencoded"), ("authorization", &*basic)];
    let said = client.post("/introspect", &headers, format!("token={access}")).await.json().await;
    for (name, value) in [
        ("active", json!(true)),
        ("sub", json!("nightly")),
        ("client_id", json!("nightly")),
        ("aud", json!(R)),
        ("scope", json!("mcp:read")),
    ] {
        assert_eq!(said[name], value, "{said}");
    }

    // With a key in place of a secret, for a named endpoint.
    let assertion = || {
        let now = Utc::now().timestamp();
        key.sign("JWT", &json!({ "iss": "signer", "sub": "signer", "aud": P, "iat": now, "exp": now + 60, "jti": rand::random::<u64>().to_string() }))
    };
    let (signed, dev) = (assertion(), format!("{R}/dev"));
    let form = [
        ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
        ("client_assertion", &*signed),
        ("resource", &*dev),
        ("scope", "mcp:write openid"),
    ];
    let given = ask(&client, &form).await.json().await;
    assert_eq!(given["scope"], "mcp:write");
    assert_eq!(world.status(0, "/mcp/dev", given["access_token"].as_str().unwrap()).await, 200);

    let hosted = json!({ "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"], "token_endpoint_auth_method": "client_secret_post" });
    let registered = client.post("/register", &[], hosted.to_string()).await.json().await;
    let (id, secret) =
        (registered["client_id"].as_str().unwrap(), registered["client_secret"].as_str().unwrap());
    let public = world.register().await;
    for (form, error) in [
        (vec![("client_id", id), ("client_secret", secret), ("resource", R)], (400, "unauthorized_client")),
        (vec![("client_id", "web"), ("client_secret", OTHER), ("resource", R)], (400, "unauthorized_client")),
        (vec![("client_id", &*public), ("resource", R)], (400, "unauthorized_client")),
        (vec![("client_id", "nightly"), ("resource", R)], (401, "invalid_client")),
        (vec![("client_id", "nightly"), ("client_secret", OTHER), ("resource", R)], (401, "invalid_client")),
        (vec![("client_id", "signer"), ("client_secret", ""), ("resource", R)], (401, "invalid_client")),
        (vec![("client_id", "nightly"), ("client_secret", SECRET)], (400, "invalid_target")),
        (
            vec![
                ("client_id", "nightly"),
                ("client_secret", SECRET),
                ("resource", "https://other.example/mcp"),
            ],
            (400, "invalid_target"),
        ),
    ] {
        let refused = oauth_error(ask(&client, &form).await).await;
        assert_eq!(refused, (error.0, error.1.to_owned()), "{form:?}");
    }
    // It sends nobody's browser anywhere.
    let page = Browser::new(&client).get(&Request::of("nightly").path()).await;
    assert!(page.is_error_page(403), "{}", page.text);

    // It ends what it has got, and nobody else does.
    let form = [("client_id", "web"), ("client_secret", OTHER), ("token", &*access)];
    assert_eq!(post_form(&client, "/revoke", &form).await.status(), 200);
    assert_eq!(world.status(0, "/mcp", &access).await, 200);
    let form = [("client_id", "nightly"), ("client_secret", SECRET), ("token", &*access)];
    assert_eq!(post_form(&client, "/revoke", &form).await.status(), 200);
    assert_eq!(world.status(0, "/mcp", &access).await, 401);
    let said = client.post("/introspect", &headers, format!("token={access}")).await.json().await;
    assert_eq!(said, json!({ "active": false }));
    let operator = Operator::at(&world.gateways[0]);
    let found = operator.ask(Method::GET, "audit?kind=action", None).await.json().await;
    let of = |action: &str| -> Vec<Value> {
        let all = found["items"].as_array().unwrap().iter();
        all.filter(|entry| entry["action"] == action).cloned().collect()
    };
    let (given, ended) = (of("client.token"), of("grant.revoke"));
    assert_eq!((given.len(), &given[0]["actor"]), (2, &json!("client:nightly")), "{found}");
    assert_eq!((ended.len(), &ended[0]["target"]), (1, &given[0]["target"]), "{found}");
    let log = world.gateways[0].program.stderr();
    assert!(!log.contains(SECRET) && !log.contains(&access) && !found.to_string().contains(&access));
}

#[tokio::test]
async fn what_a_client_was_given_ends_when_its_entry_is_taken_out_or_changed() {
    let world = World::with("embedded", &of(&nightly(SECRET))).await;
    let (client, gateway) = (world.client(0), &world.gateways[0]);
    let first = token(&client, "nightly", SECRET).await;
    let session = Session::open(&client.bearer(&first), "/mcp", "2025-11-25", json!({})).await;
    let mut stream = session.get(None).await;
    assert_eq!(stream.status(), 200);

    // Another name for people changes nothing.
    rewrite(gateway, |yaml| yaml.replace("id: nightly,", "id: nightly, name: Nightly,"));
    eventually(SOON, async || gateway.program.stderr().contains("config.keys=\"auth.clients\"")).await;
    assert_eq!(world.status(0, "/mcp", &first).await, 200);

    rewrite(gateway, |yaml| yaml.replace(SECRET, OTHER));
    eventually(SOON, async || world.status(0, "/mcp", &first).await == 401).await;
    let ended = async { while stream.event().await.is_some() {} };
    tokio::time::timeout(SOON, ended).await.expect("its stream ends");
    let form = [("client_id", "nightly"), ("client_secret", SECRET), ("resource", R)];
    assert_eq!(oauth_error(ask(&client, &form).await).await.1, "invalid_client");
    let second = token(&client, "nightly", OTHER).await;
    assert_eq!(world.status(0, "/mcp", &second).await, 200);

    let entry = nightly(OTHER).replace("id: nightly,", "id: nightly, name: Nightly,");
    rewrite(gateway, |yaml| yaml.replace(&entry, ""));
    eventually(SOON, async || world.status(0, "/mcp", &second).await == 401).await;
    let form = [("client_id", "nightly"), ("client_secret", OTHER), ("resource", R)];
    assert_eq!(oauth_error(ask(&client, &form).await).await.1, "unsupported_grant_type");
    let metadata = client.get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert_eq!(metadata["grant_types_supported"], json!(["authorization_code", "refresh_token"]));

    // An entry that is back with a secret of its own brings nothing back that was before.
    rewrite(gateway, |yaml| {
        yaml.replace("clients: []", &format!("clients: [{}]", nightly(SECRET).replace("01", "ab")))
    });
    let form = [("client_id", "nightly"), ("client_secret", &*SECRET.replace("01", "ab")), ("resource", R)]
        .map(|(a, b)| (a, b.to_owned()));
    let form = form.each_ref().map(|(a, b)| (*a, b.as_str()));
    eventually(SOON, async || ask(&client, &form).await.status() == 200).await;
    for old in [&first, &second] {
        assert_eq!(world.status(0, "/mcp", old).await, 401);
    }
    // A client that is none changes nothing.
    rewrite(gateway, |yaml| yaml.replace("grants: [client_credentials]", "grants: []"));
    eventually(SOON, async || gateway.program.stderr().contains("configuration refused")).await;
    assert_eq!(ask(&client, &form).await.status(), 200);
}

#[tokio::test]
async fn a_client_with_a_place_to_be_answered_at_logs_users_in_for_no_more_than_it_may() {
    let web = format!(
        "{{ id: web, name: Reports, secret: \"{SECRET}\", grants: [authorization_code], scopes: [\"mcp:read\"], redirect_uris: [\"{CALLBACK}\"] }}"
    );
    let database = PostgresDatabase::fresh().await;
    let world = World::several_as(2, &database.url(), &of(&web), |setup| setup).await;
    let ann = world.user("ann").await;
    let sign_in = world.sign_in_token(&ann).await;
    let browser = Browser::new(&world.client(0));
    let request = Request::of("web").with("redirect_uri", CALLBACK);
    let page = browser.sign_in(&request, &sign_in).await;
    assert!(
        page.text.contains("Reports") && page.text.contains("Your administrator has entered"),
        "{}",
        page.text
    );
    assert!(!page.text.contains("mcp:write") && !page.text.contains("not one of a known application"));
    let code = browser.decide(&page, "allow", &["mcp:read", "mcp:write"]).await.parameter("code").unwrap();
    let form = [
        ("grant_type", "authorization_code"),
        ("client_id", "web"),
        ("client_secret", SECRET),
        ("code", &*code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ];
    let given = post_form(&world.client(1), "/token", &form).await.json().await;
    assert_eq!(given["scope"], "mcp:read");
    let (access, refresh) =
        (given["access_token"].as_str().unwrap(), given["refresh_token"].as_str().unwrap());
    for number in 0..2 {
        assert_eq!(world.status(number, "/mcp", access).await, 200);
    }
    let form = [
        ("grant_type", "refresh_token"),
        ("client_id", "web"),
        ("client_secret", SECRET),
        ("refresh_token", refresh),
    ];
    let again = post_form(&world.client(0), "/token", &form).await.json().await;
    let (access, refresh) =
        (again["access_token"].as_str().unwrap(), again["refresh_token"].as_str().unwrap());
    assert_eq!(world.status(1, "/mcp", access).await, 200);
    // Each instance has its own configuration.
    for number in 0..2 {
        assert_eq!(world.status(number, "/mcp", access).await, 200);
        rewrite(&world.gateways[number], |yaml| yaml.replace(&web, ""));
        eventually(SOON, async || world.status(number, "/mcp", access).await == 401).await;
        let form = [
            ("grant_type", "refresh_token"),
            ("client_id", "web"),
            ("client_secret", SECRET),
            ("refresh_token", refresh),
        ];
        let refused = oauth_error(post_form(&world.client(number), "/token", &form).await).await;
        assert_eq!(refused, (401, "invalid_client".to_owned()));
    }
}
