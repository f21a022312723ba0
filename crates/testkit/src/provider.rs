//! An authorization server of somebody else: it issues tokens for a backend, as strictly as the strict ones do. Refresh
//! tokens are good once, and one that is used again ends all that came of it. It remembers what it was asked.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use url::form_urlencoded;

use crate::backend::{Backend, Reply, Request};

/// A form, or a query.
pub type Form = BTreeMap<String, String>;

/// How it behaves.
#[derive(Debug, Clone)]
pub struct Rules {
    /// How long an access token is good, in seconds; `None`: it doesn't say, and they are good for ever.
    pub life: Option<u64>,
    /// Who agrees at its authorization endpoint.
    pub subject: String,
    /// Scopes that it gives, whatever is asked for.
    pub scope: Option<String>,
    /// Members that its metadata have besides or in place of others; null takes one out.
    pub metadata: Value,
    /// What its token endpoint answers in place of a token.
    pub fault: Option<(u16, Value)>,
    /// What its token endpoint answers to an exchange in place of a token.
    pub exchange_fault: Option<(u16, Value)>,
    /// Claims that its assertions for other servers (ID-JAG) have in place of the right ones.
    pub vouched: Value,
    /// What it calls itself in answers at the redirect URI; `None`: nothing.
    pub iss: Option<String>,
}

/// Makes an ID token of its claims.
type Sign = Arc<dyn Fn(&Value) -> String + Send + Sync>;

/// What an ID token has, beside the user.
#[derive(Clone)]
struct About {
    issuer: String,
    nonce: Option<String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            life: Some(3600),
            subject: "somebody".to_owned(),
            scope: None,
            metadata: json!({}),
            fault: None,
            exchange_fault: None,
            vouched: json!({}),
            iss: None,
        }
    }
}

struct Code {
    client: String,
    redirect: String,
    challenge: String,
    subject: String,
    scope: String,
    nonce: Option<String>,
}

struct Family {
    about: About,
    subject: String,
    client: String,
    scope: String,
    current: String,
    used: Vec<String>,
    is_dead: bool,
}

struct Access {
    subject: String,
    is_exchanged: bool,
    until: Option<Instant>,
}

#[derive(Default)]
struct State {
    scheme: &'static str,
    rules: Rules,
    /// Ids and secrets.
    clients: HashMap<String, Option<String>>,
    codes: HashMap<String, Code>,
    families: Vec<Family>,
    access: HashMap<String, Access>,
    count: usize,
    asked: Vec<Form>,
    /// Its keys, and what makes ID tokens of claims with one of them.
    identity: Option<(Value, Sign)>,
    gate: Option<Arc<Semaphore>>,
}

/// A running authorization server.
pub struct Provider {
    server: Backend,
    state: Arc<Mutex<State>>,
}

fn form(text: &[u8]) -> Form {
    form_urlencoded::parse(text).into_owned().collect()
}

fn error(status: u16, code: &str) -> Reply {
    Reply::text(status, "application/json", json!({ "error": code }).to_string())
        .header("cache-control", "no-store")
}

impl Provider {
    /// Starts one on a free port of loopback.
    pub async fn start() -> Self {
        Self::listen(None).await
    }

    /// Starts one that speaks TLS.
    pub async fn start_tls(tls: Arc<rustls::ServerConfig>) -> Self {
        Self::listen(Some(tls)).await
    }

    async fn listen(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let state = Arc::new(Mutex::new(State { scheme, ..State::default() }));
        let answering = state.clone();
        let behave = move |request: Request| answer(answering.clone(), request);
        let server = match tls {
            None => Backend::start(behave).await,
            Some(tls) => Backend::start_tls(tls, behave).await,
        };
        Self { server, state }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Its name, by the name of this host.
    pub fn issuer(&self) -> String {
        format!("{}://localhost:{}", self.state().scheme, self.server.address().port())
    }

    /// Changes how it behaves.
    pub fn rule(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.state().rules);
    }

    /// Makes a client known.
    pub fn add_client(&self, id: &str, secret: Option<&str>) {
        self.state().clients.insert(id.to_owned(), secret.map(str::to_owned));
    }

    /// Lets it give ID tokens: `keys` are what others check them with.
    pub fn identify(&self, keys: Value, sign: impl Fn(&Value) -> String + Send + Sync + 'static) {
        self.state().identity = Some((keys, Arc::new(sign)));
    }

    /// How many clients have registered or were made known.
    pub fn clients(&self) -> usize {
        self.state().clients.len()
    }

    /// What its token endpoint was asked for with this `grant_type`.
    pub fn asked(&self, grant_type: &str) -> Vec<Form> {
        let state = self.state();
        state.asked.iter().filter(|form| form["grant_type"] == grant_type).cloned().collect()
    }

    /// All requests to it.
    pub fn requests(&self) -> Vec<Request> {
        self.server.requests()
    }

    /// Holds requests for tokens back until the semaphore has permits for them.
    pub fn hold(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.state().gate = Some(gate.clone());
        gate
    }

    /// Lets no access token be good any more.
    pub fn expire_all(&self) {
        self.state().access.clear();
    }

    /// Lets no access token be good any more that was got by an exchange.
    pub fn expire_exchanged(&self) {
        self.state().access.retain(|_, access| !access.is_exchanged);
    }

    /// Lets no refresh token be good any more.
    pub fn end_all(&self) {
        self.state().families.iter_mut().for_each(|family| family.is_dead = true);
    }

    /// How many families of refresh tokens were ended because one was used twice, or by a test.
    pub fn ended(&self) -> usize {
        self.state().families.iter().filter(|family| family.is_dead).count()
    }

    /// Whose a request with this `Authorization` header is.
    pub fn subject(&self, authorization: &str) -> Option<String> {
        subject_of(&self.state(), authorization)
    }

    /// A way to ask that for a backend.
    pub fn checker(&self) -> Checker {
        Checker(self.state.clone())
    }

    /// Follows a redirect of the gateway to the authorization endpoint: where the browser is sent next.
    ///
    /// # Panics
    ///
    /// If the server does not send it anywhere.
    pub fn agree(&self, url: &str) -> String {
        let state = self.state.clone();
        let query = url::Url::parse(url).unwrap().query().unwrap_or_default().to_owned();
        authorize(&state, &form(query.as_bytes())).unwrap_or_else(|why| panic!("{why}: {url}"))
    }
}

/// Tells whose requests are.
#[derive(Clone)]
pub struct Checker(Arc<Mutex<State>>);

impl Checker {
    /// Whose a request is, or the refusal that a backend answers with.
    ///
    /// # Errors
    ///
    /// If it is nobody's.
    pub fn check(&self, request: &Request) -> Result<String, Box<Reply>> {
        subject_of(&self.0.lock().unwrap(), request.header("authorization")).ok_or_else(|| {
            let refusal = Reply::text(401, "application/json", r#"{"error":"invalid_token"}"#);
            Box::new(refusal.header("www-authenticate", "Bearer error=\"invalid_token\""))
        })
    }
}

fn subject_of(state: &State, authorization: &str) -> Option<String> {
    let access = state.access.get(authorization.strip_prefix("Bearer ")?)?;
    let is_good = access.until.is_none_or(|until| Instant::now() < until);
    is_good.then(|| access.subject.clone())
}

/// What a JSON Web Token says.
fn claims(token: &str) -> Option<Value> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}

/// Whose an ID token is, as it says.
fn subject_of_id_token(token: &str) -> Option<String> {
    Some(claims(token)?["sub"].as_str()?.to_owned())
}

async fn answer(state: Arc<Mutex<State>>, request: Request) -> Reply {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    match path {
        "/.well-known/oauth-authorization-server" => metadata(&state, &request),
        "/authorize" => match authorize(&state, &form(query.as_bytes())) {
            Ok(to) => Reply::status(302).header("location", &to),
            Err(why) => Reply::text(400, "text/plain", why),
        },
        "/token" => {
            let gate = state.lock().unwrap().gate.clone();
            let _turn = match &gate {
                Some(gate) => Some(gate.acquire().await.unwrap()),
                None => None,
            };
            token(&state, &request)
        }
        "/keys" => {
            let keys = state.lock().unwrap().identity.as_ref().map(|(keys, _)| keys.clone());
            Reply::json(&keys.unwrap_or_else(|| json!({ "keys": [] })))
        }
        "/register" => register(&state, &request),
        "/revoke" => {
            let token = form(&request.text).remove("token").unwrap_or_default();
            let mut state = state.lock().unwrap();
            state.access.remove(&token);
            state.families.iter_mut().filter(|f| f.current == token).for_each(|f| f.is_dead = true);
            Reply::status(200)
        }
        _ => Reply::text(404, "application/json", r#"{"error":"not_found"}"#),
    }
}

fn metadata(state: &Mutex<State>, request: &Request) -> Reply {
    let state = state.lock().unwrap();
    let issuer = format!("{}://{}", state.scheme, request.header("host"));
    let mut metadata = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "registration_endpoint": format!("{issuer}/register"),
        "revocation_endpoint": format!("{issuer}/revoke"),
        "code_challenge_methods_supported": ["S256"],
        "jwks_uri": format!("{issuer}/keys"),
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none", "private_key_jwt"],
    });
    for (key, value) in state.rules.metadata.as_object().into_iter().flatten() {
        metadata[key] = value.clone();
        if value.is_null() {
            metadata.as_object_mut().unwrap().remove(key);
        }
    }
    Reply::json(&metadata)
}

/// The authorization endpoint, at which everybody agrees.
fn authorize(state: &Mutex<State>, form: &Form) -> Result<String, String> {
    let mut state = state.lock().unwrap();
    let of = |name: &str| form.get(name).cloned().ok_or_else(|| format!("{name} is missing"));
    let (client, redirect, challenge) = (of("client_id")?, of("redirect_uri")?, of("code_challenge")?);
    let is_url = client.starts_with("https://");
    if !(state.clients.contains_key(&client) || is_url) || of("code_challenge_method")? != "S256" {
        return Err(format!("unknown client {client}, or no PKCE"));
    }
    state.count += 1;
    let code = format!("code-{}", state.count);
    let (subject, scope) = (state.rules.subject.clone(), form.get("scope").cloned().unwrap_or_default());
    let scope = state.rules.scope.clone().unwrap_or(scope);
    let nonce = form.get("nonce").cloned();
    let made = Code { client, redirect: redirect.clone(), challenge, subject, scope, nonce };
    state.codes.insert(code.clone(), made);
    let mut to = url::Url::parse(&redirect).map_err(|e| e.to_string())?;
    to.query_pairs_mut().append_pair("code", &code).append_pair("state", &of("state")?);
    if let Some(iss) = &state.rules.iss {
        to.query_pairs_mut().append_pair("iss", iss);
    }
    Ok(to.into())
}

fn register(state: &Mutex<State>, request: &Request) -> Reply {
    let mut state = state.lock().unwrap();
    state.count += 1;
    let id = format!("client-{}", state.count);
    let is_public = request.body["token_endpoint_auth_method"] == "none";
    let secret = (!is_public).then(|| format!("secret-{}", state.count));
    state.clients.insert(id.clone(), secret.clone());
    let mut answer = request.body.clone();
    answer["client_id"] = json!(id);
    if let Some(secret) = secret {
        answer["client_secret"] = json!(secret);
        answer["client_secret_expires_at"] = json!(0);
    }
    Reply::text(201, "application/json", answer.to_string())
}

/// The client of a token request, if it proves to be it.
fn client_of(state: &State, request: &Request, form: &Form) -> Option<String> {
    let basic = request.header("authorization").strip_prefix("Basic ").and_then(|encoded| {
        let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
        let (id, secret) = text.split_once(':')?;
        let decoded = |text: &str| {
            form_urlencoded::parse(format!("x={text}").as_bytes()).next().unwrap().1.into_owned()
        };
        Some((decoded(id), Some(decoded(secret))))
    });
    let in_form = || Some((form.get("client_id")?.clone(), form.get("client_secret").cloned()));
    let (id, secret) = basic.or_else(in_form)?;
    if id.starts_with("https://") {
        return form.contains_key("client_assertion").then_some(id);
    }
    (*state.clients.get(&id)? == secret).then_some(id)
}

fn token(state: &Mutex<State>, request: &Request) -> Reply {
    let form = form(&request.text);
    let mut state = state.lock().unwrap();
    state.asked.push(form.clone());
    if let Some((status, body)) = state.rules.fault.clone() {
        return Reply::text(status, "application/json", body.to_string());
    }
    let Some(client) = client_of(&state, request, &form) else { return error(401, "invalid_client") };
    let of = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    match of("grant_type") {
        "client_credentials" => {
            let scope = of("scope").to_owned();
            issue(&mut state, &client, &scope, None)
        }
        "authorization_code" => {
            let Some(code) = state.codes.remove(of("code")) else { return error(400, "invalid_grant") };
            let proves = URL_SAFE_NO_PAD.encode(Sha256::digest(of("code_verifier"))) == code.challenge;
            if code.client != client || code.redirect != of("redirect_uri") || !proves {
                return error(400, "invalid_grant");
            }
            let issuer = format!("{}://{}", state.scheme, request.header("host"));
            state.families.push(Family {
                about: About { issuer, nonce: code.nonce.clone() },
                subject: code.subject.clone(),
                client,
                scope: code.scope.clone(),
                current: String::new(),
                used: Vec::new(),
                is_dead: false,
            });
            let family = state.families.len() - 1;
            issue(&mut state, &code.subject, &code.scope, Some(family))
        }
        "refresh_token" => {
            let presented = of("refresh_token");
            let knows = |family: &Family| {
                family.current == presented || family.used.iter().any(|used| used == presented)
            };
            let Some(at) = state.families.iter().position(knows) else { return error(400, "invalid_grant") };
            let family = &mut state.families[at];
            if family.current != presented {
                family.is_dead = true;
            }
            if family.is_dead || family.client != client {
                return error(400, "invalid_grant");
            }
            family.used.push(presented.to_owned());
            let (subject, scope) = (family.subject.clone(), family.scope.clone());
            issue(&mut state, &subject, &scope, Some(at))
        }
        "urn:ietf:params:oauth:grant-type:token-exchange" => {
            if let Some((status, body)) = state.rules.exchange_fault.clone() {
                return Reply::text(status, "application/json", body.to_string());
            }
            let presented = of("subject_token");
            let subject = match of("subject_token_type") {
                "urn:ietf:params:oauth:token-type:access_token" => {
                    subject_of(&state, &format!("Bearer {presented}"))
                }
                "urn:ietf:params:oauth:token-type:id_token" => subject_of_id_token(presented),
                _ => None,
            };
            let Some(subject) = subject else { return error(400, "invalid_grant") };
            let audience = form.get("audience").or_else(|| form.get("resource"));
            let subject = format!("{subject}@{}", audience.map(String::as_str).unwrap_or_default());
            let requested = of("requested_token_type").to_owned();
            if requested == "urn:ietf:params:oauth:token-type:id-jag" {
                return vouch(&state, request, &form, subject.split('@').next().unwrap_or_default(), &client);
            }
            let answer = issued(&mut state, &subject, of("scope"), None);
            let answer = answer.map(|mut answer| {
                if let Some(token) = answer["access_token"].as_str()
                    && let Some(access) = state.access.get_mut(token)
                {
                    access.is_exchanged = true;
                }
                answer["issued_token_type"] = json!(requested);
                answer
            });
            reply(answer)
        }
        "urn:ietf:params:oauth:grant-type:jwt-bearer" => {
            let own = format!("{}://{}", state.scheme, request.header("host"));
            let Some(claims) = claims(of("assertion")) else { return error(400, "invalid_grant") };
            if claims["aud"] != own.as_str() || claims["client_id"] != client.as_str() {
                return error(400, "invalid_grant");
            }
            let text = |name: &str| claims[name].as_str().unwrap_or_default().to_owned();
            let subject = format!("{}@{}", text("sub"), text("resource"));
            issue(&mut state, &subject, of("scope"), None)
        }
        _ => error(400, "unsupported_grant_type"),
    }
}

/// Vouches for `subject` to another server, at which the gateway is the client `drawbridge`.
fn vouch(state: &State, request: &Request, form: &Form, subject: &str, client: &str) -> Reply {
    let Some((_, sign)) = &state.identity else { return error(400, "invalid_request") };
    let mut claims = json!({
        "iss": format!("{}://{}", state.scheme, request.header("host")), "sub": subject,
        "aud": form.get("audience"), "resource": form.get("resource"), "client_id": "drawbridge", "asked_by": client,
    });
    for (key, value) in state.rules.vouched.as_object().into_iter().flatten() {
        claims[key] = value.clone();
    }
    Reply::json(&json!({
        "access_token": sign(&claims), "token_type": "N_A", "expires_in": 300,
        "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag",
    }))
}

fn issue(state: &mut State, subject: &str, scope: &str, family: Option<usize>) -> Reply {
    let answer = issued(state, subject, scope, family);
    reply(answer)
}

fn reply(answer: Option<Value>) -> Reply {
    match answer {
        Some(answer) => Reply::json(&answer).header("cache-control", "no-store"),
        None => error(500, "server_error"),
    }
}

fn issued(state: &mut State, subject: &str, scope: &str, family: Option<usize>) -> Option<Value> {
    state.count += 1;
    let access = format!("access-{}", state.count);
    let until = state.rules.life.map(|life| Instant::now() + Duration::from_secs(life));
    state.access.insert(access.clone(), Access { subject: subject.to_owned(), is_exchanged: false, until });
    let mut answer = json!({ "access_token": access, "token_type": "Bearer" });
    if let Some(life) = state.rules.life {
        answer["expires_in"] = json!(life);
    }
    if !scope.is_empty() {
        answer["scope"] = json!(scope);
    }
    if let Some(family) = family {
        let refresh = format!("refresh-{}", state.count);
        let identity = state.identity.clone();
        let of_it = state.families.get_mut(family)?;
        of_it.current.clone_from(&refresh);
        if let Some((_, sign)) = identity {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
            answer["id_token"] = json!(sign(&json!({
                "iss": of_it.about.issuer, "sub": of_it.subject, "aud": of_it.client, "nonce": of_it.about.nonce,
                "iat": now, "exp": now + state.rules.life.unwrap_or(3600),
            })));
        }
        answer["refresh_token"] = json!(refresh);
    }
    Some(answer)
}
