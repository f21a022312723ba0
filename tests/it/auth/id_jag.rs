//! Identity providers that let clients act for their users (ID-JAG, enterprise-managed authorization): test 86.

use std::time::{Duration, Instant};

use chrono::Utc;
use drawbridge_auth::records::{Records as _, UserClaims};
use drawbridge_testkit::PATIENCE;
use drawbridge_testkit::client::Reply;
use drawbridge_testkit::postgres::PostgresDatabase;
use drawbridge_testkit::provider::Provider;
use http::Method;
use serde_json::{Value, json};

use super::admin_tokens::{FIRST, Operator};
use super::external::{Key, keys};
use super::world::{Browser, P, R, Request, World, encoded, post_form};

const TYPE: &str = "oauth-id-jag+jwt";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// Where a confidential client is answered.
const HOSTED: &str = "https://claude.ai/api/mcp/auth_callback";

/// Gateways that take what a provider says, and a client of theirs that has a secret.
struct Place {
    world: World,
    provider: Provider,
    key: Key,
    id: String,
    secret: String,
}

impl Place {
    async fn with(count: usize, more: &str) -> Self {
        let (provider, key) = (Provider::start().await, Key::fresh("k"));
        let signs = key.clone();
        provider.identify(keys(&[&key]), move |claims| signs.id_token(claims));
        provider.add_client("gate", Some("a secret"));
        let issuer = provider.issuer();
        let auth = format!(
            "  login: {{ issuer: \"{issuer}\", client_id: gate, client_secret: a secret{more} }}\n  id_jag: [{{ issuer: \"{issuer}\" }}]\n"
        );
        let admin = format!("admin: {{ bootstrap_token: {FIRST} }}");
        let world = if count == 1 {
            World::over("embedded", &auth, |setup| setup.config(&admin)).await
        } else {
            let database = PostgresDatabase::fresh().await;
            let mut world =
                World::several_as(count, &database.url(), &auth, |setup| setup.config(&admin)).await;
            world.database = Some(database);
            world
        };
        let (id, secret) = confidential(&world).await;
        Self { world, provider, key, id, secret }
    }

    /// What the provider says, with `changes`; null takes a claim out.
    fn claims(&self, changes: &Value) -> Value {
        let now = Utc::now().timestamp();
        let mut claims = json!({ "iss": self.provider.issuer(), "sub": "ann", "aud": P, "client_id": self.id,
            "iat": now, "exp": now + 300, "jti": rand::random::<u64>().to_string(), "resource": R,
            "scope": "mcp:read mcp:write chat", "email": "ann@example.com" });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            }
        }
        claims
    }

    fn assertion(&self, changes: &Value) -> String {
        self.key.sign(TYPE, &self.claims(changes))
    }

    /// Brings an assertion to an instance, as the client.
    async fn bring(&self, number: usize, assertion: &str) -> Reply {
        let form = [
            ("grant_type", GRANT),
            ("client_id", &*self.id),
            ("client_secret", &*self.secret),
            ("assertion", assertion),
        ];
        post_form(&self.world.client(number), "/token", &form).await
    }

    async fn token(&self, number: usize, changes: &Value) -> Value {
        let reply = self.bring(number, &self.assertion(changes)).await;
        assert_eq!((reply.status(), reply.header("cache-control")), (200, Some("no-store")));
        reply.json().await
    }

    /// It is refused at all instances within a second.
    async fn has_ended(&self, token: &str) {
        let since = Instant::now();
        for number in 0..self.world.gateways.len() {
            loop {
                let asked = since.elapsed();
                if self.world.status(number, "/mcp", token).await == 401 {
                    break;
                }
                assert!(asked < Duration::from_secs(1), "instance {number} after {asked:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A client that has registered and got a secret.
async fn confidential(world: &World) -> (String, String) {
    let body = json!({ "client_name": "Hosted", "redirect_uris": [HOSTED], "token_endpoint_auth_method": "client_secret_post" });
    let reply = world.client(0).post("/register", &[], body.to_string()).await;
    assert_eq!(reply.status(), 201);
    let made = reply.json().await;
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("client_id"), text("client_secret"))
}

/// The status and the whole of an answer.
async fn answered(reply: Reply) -> (u16, String) {
    (reply.status(), reply.text().await)
}

#[tokio::test]
async fn t86_what_a_provider_says_is_good_once_at_all_instances_and_ends_as_a_login_does() {
    let place = Place::with(2, "").await;
    let world = &place.world;
    let metadata = world.client(1).get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert!(metadata["grant_types_supported"].as_array().unwrap().contains(&json!(GRANT)));
    let profiles = json!(["urn:ietf:params:oauth:grant-profile:id-jag"]);
    assert_eq!(metadata["authorization_grant_profiles_supported"], profiles);

    let assertion = place.assertion(&json!({ "jti": "once", "auth_time": 1_700_000_000 }));
    let reply = place.bring(0, &assertion).await;
    assert_eq!(reply.status(), 200);
    let given = reply.json().await;
    assert_eq!((&given["token_type"], &given["scope"]), (&json!("Bearer"), &json!("mcp:read mcp:write")));
    assert_eq!((&given["expires_in"], given.get("refresh_token")), (&json!(3600), None));
    let access = given["access_token"].as_str().unwrap();
    for number in 0..2 {
        assert_eq!(world.status(number, "/mcp", access).await, 200);
        assert_eq!(world.status(number, "/mcp/dev", access).await, 401, "it is for the other endpoint");
        let again = answered(place.bring(1 - number, &assertion).await).await;
        assert!(again.0 == 400 && again.1.contains("\"invalid_grant\""), "{again:?}");
    }
    // Another one with the same id.
    let same = place.bring(1, &place.assertion(&json!({ "jti": "once", "sub": "bob" }))).await;
    assert_eq!(same.status(), 400);

    // Who logs in with that provider is the same user, whose groups and name are those of the login.
    let user = world.records.user_of(&place.provider.issuer(), "ann").await.unwrap().unwrap();
    assert_eq!(user.email.as_deref(), Some("ann@example.com"));
    let client_id = world.register().await;
    let browser = Browser::new(&world.client(0));
    place.provider.rule(|rules| rules.subject = "ann".to_owned());
    let page = browser.get(&Request::of(&client_id).path()).await;
    let back = place.provider.agree(page.location().unwrap());
    let page = browser.get(back.strip_prefix(P).unwrap()).await;
    let code = browser.decide(&page, "allow", &["mcp:read"]).await.parameter("code").unwrap();
    let tokens = world.redeem(1, &client_id, &code).await.json().await;
    let login = tokens["access_token"].as_str().unwrap().to_owned();

    let operator = Operator::at(&world.gateways[0]);
    let listed = operator.ask(Method::GET, &format!("grants?user={}", user.id), None).await.json().await;
    let grants = listed["items"].as_array().unwrap();
    assert_eq!(grants.len(), 2, "{listed}");
    let grant = grants.iter().find(|grant| grant["client"] == place.id).unwrap();
    assert_eq!((&grant["resource"], &grant["client_name"]), (&json!(R), &json!("Hosted")));
    assert!(grant["auth_time"].as_str().unwrap().starts_with("2023-11-14T22:13:20"), "{grant}");

    // It ends by its grant, by its client, and with its user.
    let path = format!("grants/{}", grant["id"].as_str().unwrap());
    assert_eq!(operator.ask(Method::DELETE, &path, None).await.status(), 204);
    place.has_ended(access).await;
    let access = place.token(1, &json!({})).await["access_token"].as_str().unwrap().to_owned();
    let form = [("client_id", &*place.id), ("client_secret", &*place.secret), ("token", &*access)];
    assert_eq!(post_form(&world.client(0), "/revoke", &form).await.status(), 200);
    place.has_ended(&access).await;
    let access = place.token(0, &json!({})).await["access_token"].as_str().unwrap().to_owned();
    assert_eq!((world.status(1, "/mcp", &access).await, world.status(1, "/mcp", &login).await), (200, 200));
    let all = format!("users/{}", user.id);
    let revoked = operator.ask(Method::POST, &format!("{all}/revoke-all"), None).await.json().await;
    assert_eq!(revoked["grants"], 2, "{revoked}");
    place.has_ended(&access).await;
    place.has_ended(&login).await;
    let access = place.token(0, &json!({})).await["access_token"].as_str().unwrap().to_owned();
    let disabled = operator.ask(Method::POST, &format!("{all}/disable"), None).await;
    assert_eq!(disabled.status(), 200);
    place.has_ended(&access).await;
    let refused = answered(place.bring(1, &place.assertion(&json!({}))).await).await;
    assert!(refused.0 == 400 && refused.1.contains("\"invalid_grant\""), "{refused:?}");

    let found = operator.ask(Method::GET, "audit?kind=action&action=user.sign_in", None).await.json().await;
    let of = |outcome: &str| -> Vec<Value> {
        let all = found["items"].as_array().unwrap().iter();
        all.filter(|entry| entry["outcome"] == outcome && entry["detail"]["with"] == "assertion")
            .cloned()
            .collect()
    };
    let (ok, refused) = (of("ok"), of("refused"));
    assert_eq!((ok.len(), refused.len()), (4, 4), "{found}");
    assert_eq!(ok[0]["actor"], format!("user:{}", user.id));
    assert_eq!(ok[0]["detail"]["grant"], grant["id"]);
    assert_eq!(refused[0]["actor"], format!("client:{}", place.id));
    assert_eq!(refused[0]["detail"]["why"], "it was used before");
    assert!(!found.to_string().contains(&assertion) && !found.to_string().contains(&access));
}

#[tokio::test]
async fn t86_whatever_is_wrong_with_an_assertion_is_told_in_the_same_words() {
    let place = Place::with(1, "").await;
    let (world, now) = (&place.world, Utc::now().timestamp());
    let issuer = place.provider.issuer();
    let used = place.assertion(&json!({}));
    assert_eq!(place.bring(0, &used).await.status(), 200);
    let mut wrong: Vec<(&str, String)> = [
        ("it is for another client", json!({ "client_id": "another" })),
        ("it names no client", json!({ "client_id": null })),
        ("it is for another server too", json!({ "aud": [P, "https://other.example"] })),
        ("it is for another resource", json!({ "aud": format!("{P}/token") })),
        ("it is good for longer than is accepted", json!({ "exp": now + 600 })),
        ("it has expired", json!({ "iat": now - 400, "exp": now - 100 })),
        ("its issuer is not one of the list", json!({ "iss": "https://other.example" })),
        ("its issuer is not one of the list", json!({ "iss": format!("{issuer}/") })),
        ("its id can't be remembered", json!({ "jti": null })),
        ("it is bound to a key of its sender", json!({ "cnf": { "jkt": "x" } })),
        ("it allows what can't be told here", json!({ "authorization_details": [{ "type": "x" }] })),
        ("its resource is not one of this server", json!({ "resource": "https://other.example/mcp" })),
        ("its resource is not one of this server", json!({ "resource": format!("{R}/nope") })),
        ("it allows nothing that is offered here", json!({ "scope": "chat" })),
        ("it allows nothing that is offered here", json!({ "scope": null })),
        ("it names nobody", json!({ "sub": "" })),
    ]
    .into_iter()
    .map(|(why, changes)| (why, place.assertion(&changes)))
    .collect();
    wrong.push(("its type is not accepted", place.key.sign("JWT", &place.claims(&json!({})))));
    wrong.push(("its type is not accepted", place.key.sign("at+jwt", &place.claims(&json!({})))));
    wrong.push(("its signature is wrong", Key::fresh("k").sign(TYPE, &place.claims(&json!({})))));
    wrong.push(("its key is not known", Key::fresh("other").sign(TYPE, &place.claims(&json!({})))));
    wrong.push(("it is malformed", "nonsense".to_owned()));
    wrong.push(("it was used before", used));
    let alike = answered(place.bring(0, "x").await).await;
    assert!(alike.0 == 400 && alike.1.contains("\"invalid_grant\""), "{alike:?}");
    for (why, assertion) in &wrong {
        assert_eq!(answered(place.bring(0, assertion).await).await, alike, "{why}");
        let log = world.gateways[0].program.stderr();
        assert!(log.contains(why), "{why}: {log}");
        assert!(*why == "it is malformed" || !log.contains(assertion.as_str()));
    }
    // None of that has used up what is good.
    place.token(0, &json!({ "jti": "good", "exp": now + 299 })).await;
    let operator = Operator::at(&world.gateways[0]);
    let found =
        operator.ask(Method::GET, "audit?kind=action&action=user.sign_in&limit=100", None).await.json().await;
    let refused = found["items"].as_array().unwrap().iter().filter(|entry| entry["outcome"] == "refused");
    assert_eq!(refused.count(), wrong.len() + 1);
}

#[tokio::test]
async fn t86_the_client_proves_who_it_is_and_gets_no_more_than_the_provider_and_the_gateway_allow() {
    let place = Place::with(1, "").await;
    let client = place.world.client(0);
    let public = place.world.register().await;
    for (id, secret, error) in [
        (&*public, None, (400, "unauthorized_client")),
        (&*place.id, None, (401, "invalid_client")),
        (&*place.id, Some("wrong"), (401, "invalid_client")),
        ("nobody", None, (401, "invalid_client")),
    ] {
        let assertion = place.assertion(&json!({ "client_id": id }));
        let mut form = vec![("grant_type", GRANT), ("client_id", id), ("assertion", &*assertion)];
        form.extend(secret.map(|secret| ("client_secret", secret)));
        let reply = post_form(&client, "/token", &form).await;
        assert_eq!((reply.status(), reply.json().await["error"].as_str().unwrap()), error, "{id}");
    }
    let scope = async |changes: Value, more: &[(&str, &str)]| -> (u16, Value) {
        let assertion = place.assertion(&changes);
        let mut form = vec![
            ("grant_type", GRANT),
            ("client_id", &*place.id),
            ("client_secret", &*place.secret),
            ("assertion", &*assertion),
        ];
        form.extend(more);
        let reply = post_form(&client, "/token", &form).await;
        (reply.status(), reply.json().await)
    };
    assert_eq!(scope(json!({ "scope": "mcp:read" }), &[]).await.1["scope"], "mcp:read");
    assert_eq!(scope(json!({ "scope": ["mcp:read", "admin:*"] }), &[]).await.1["scope"], "mcp:read");
    assert_eq!(scope(json!({}), &[("scope", "mcp:read")]).await.1["scope"], "mcp:read");
    assert_eq!(scope(json!({ "scope": "mcp:read" }), &[("scope", "mcp:write")]).await.1["scope"], "mcp:read");
    // Without a resource it is for the default endpoint; the request may name what the assertion does, and nothing else.
    let dev = format!("{R}/dev");
    let (_, given) = scope(json!({ "resource": null }), &[("resource", R)]).await;
    assert_eq!(place.world.status(0, "/mcp", given["access_token"].as_str().unwrap()).await, 200);
    let (_, given) = scope(json!({ "resource": [dev] }), &[]).await;
    assert_eq!(place.world.status(0, "/mcp/dev", given["access_token"].as_str().unwrap()).await, 200);
    let (status, refused) = scope(json!({}), &[("resource", &dev)]).await;
    assert_eq!((status, &refused["error"]), (400, &json!("invalid_target")));
    let form = [("grant_type", GRANT), ("client_id", &*place.id), ("client_secret", &*place.secret)];
    let reply =
        client.post("/token", &[("content-type", "application/x-www-form-urlencoded")], encoded(&form)).await;
    assert_eq!(reply.json().await["error"], "invalid_request");
}

#[tokio::test]
async fn t86_only_users_of_an_allowed_group_get_in() {
    let place = Place::with(1, ", allowed_groups: [staff]").await;
    assert_eq!(place.bring(0, &place.assertion(&json!({}))).await.status(), 400);
    let issuer = place.provider.issuer();
    assert_eq!(place.world.records.user_of(&issuer, "ann").await.unwrap(), None, "nothing is left of it");
    for (group, status) in [("guests", 400), ("staff", 200)] {
        let claims = UserClaims {
            issuer: issuer.clone(),
            subject: group.to_owned(),
            email: None,
            name: Some("As the login said".to_owned()),
            groups: [group.to_owned()].into(),
        };
        let before =
            place.world.records.enter_user(&drawbridge_auth::fresh_id(), &claims, Utc::now()).await.unwrap();
        let reply = place.bring(0, &place.assertion(&json!({ "sub": group }))).await;
        assert_eq!(reply.status(), status, "{group}");
        assert_eq!(place.world.records.user(&before.id).await.unwrap().unwrap(), before);
    }
}

#[tokio::test]
async fn t86_while_nobody_can_tell_whether_it_was_used_it_is_not_refused_but_not_taken_either() {
    let place = Place::with(2, "").await;
    let assertion = place.assertion(&json!({}));
    let mut redis = place.world.redis;
    let redis = redis.as_mut().unwrap();
    let form = [
        ("grant_type", GRANT),
        ("client_id", &*place.id),
        ("client_secret", &*place.secret),
        ("assertion", &*assertion),
    ];
    redis.stop().await;
    let client = place.world.gateways[0].client();
    let reply = post_form(&client, "/token", &form).await;
    assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("2")));
    assert_eq!(reply.json().await["error"], "temporarily_unavailable");
    redis.restart().await;
    drawbridge_testkit::eventually(PATIENCE, async || {
        let reply = post_form(&client, "/token", &form).await;
        reply.status() == 200
    })
    .await;
}

#[tokio::test]
async fn t86_nothing_of_it_is_there_unless_the_operator_says_so() {
    let world = World::one().await;
    let client = world.client(0);
    let metadata = client.get("/.well-known/oauth-authorization-server", &[]).await.json().await;
    assert_eq!(metadata["grant_types_supported"], json!(["authorization_code", "refresh_token"]));
    assert_eq!(metadata.get("authorization_grant_profiles_supported"), None);
    let (id, secret) = confidential(&world).await;
    let form = [("grant_type", GRANT), ("client_id", &*id), ("client_secret", &*secret), ("assertion", "x")];
    let reply = post_form(&client, "/token", &form).await;
    assert_eq!((reply.status(), reply.json().await["error"].clone()), (400, json!("unsupported_grant_type")));
}
