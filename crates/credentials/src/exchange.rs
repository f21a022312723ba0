//! Tokens for one backend that are got with what users have logged in with (RFC 8693): no user has to connect anything,
//! and what the identity provider lets them do is what they may do there.
//!
//! ```text
//! a request ─▶ a token for this user, got with this login? ─▶ send
//!              none ─▶ the login, renewed if it is due ─▶ exchange it: once at a time for each user
//! 401 ─▶ exchange again, once ─▶ 401 again ─▶ the refusal stands
//! the server says that the login is no good ─▶ renew it, exchange again ─▶ no again ─▶ the user is told
//! ```
//!
//! Where the backend trusts another server, what the provider gives is no token of the backend but an assertion for that
//! server (ID-JAG), which gives the token for it.
//!
//! What is exchanged is the provider's own, never a token of this gateway and never what a client has sent. What was got
//! is kept in memory for some minutes, and with the login it is over: a new one has another version.

mod answer;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use drawbridge_auth::fetch::Fetch;
use drawbridge_core::accounts::Accounts;
use drawbridge_core::credentials::{Credential, Credentials, Refusal};
use drawbridge_core::{Fault, Principal};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub use self::answer::{SubjectToken, Wanted};
use crate::Secret;
use crate::client_credentials::Method;
use crate::connections::{Connections, Subject};
use crate::exchange::answer::Exchanged;
use crate::server::{self, Metadata};
use crate::token::{ClientIdentity, ClientProof, NoToken};
use crate::turns::Turns;

/// A token is used for no longer than this.
const LONGEST: Duration = Duration::from_secs(600);
/// A token is not used when its end is nearer than this, or half its life: it has to arrive.
const MARGIN: Duration = Duration::from_secs(60);
/// A refusal that concerns one user is not asked for again before this.
const DENIED_FOR: Duration = Duration::from_secs(60);
/// After a renewed token was refused, another is not got before this.
const FORCED_FOR: Duration = Duration::from_secs(30);
/// A server that gives no token is left alone for this long, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
const MAX_KNOWN: usize = 10_000;

/// Where tokens are exchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// At this endpoint.
    Endpoint(String),
    /// At the endpoint that this server names.
    Issuer(String),
}

/// What the configuration says.
#[derive(Clone)]
pub struct Options {
    /// Of the backend.
    pub name: String,
    /// Where tokens are exchanged.
    pub at: At,
    /// The gateway's id there, and its secret.
    pub client: (String, Option<Secret>),
    /// How that is shown.
    pub method: Method,
    /// What is asked for.
    pub wanted: Wanted,
    /// Whom what was got is shown to, if the server only vouches for the user.
    pub redeemed: Option<Redeemed>,
}

/// Where an assertion becomes a token of the backend.
#[derive(Clone)]
pub struct Redeemed {
    /// Of that server.
    pub issuer: String,
    /// The gateway's id there, and its secret.
    pub client: (String, Option<Secret>),
    /// How that is shown.
    pub method: Method,
}

/// What is known for a user, as long as the login is this version of it.
#[derive(Clone)]
struct Known {
    login: (String, i64),
    until: Instant,
    what: What,
}

#[derive(Clone)]
enum What {
    Token {
        credential: Credential,
        /// The one before was refused, until when that matters.
        forced: Option<Instant>,
    },
    /// The user has to log in again.
    Again,
    /// The server does not let this user.
    Denied,
}

/// Tokens of users for one backend.
pub struct Exchange(Arc<Inner>);

struct Inner {
    options: Options,
    fetch: Arc<dyn Fetch>,
    connections: Arc<Connections>,
    known: Mutex<HashMap<String, Known>>,
    turns: Turns,
    server: Mutex<Option<Metadata>>,
    /// The one that assertions are shown to.
    redeeming: Mutex<Option<Metadata>>,
    /// The server is not asked until then, and why.
    resting: Mutex<Option<(Instant, Duration, String)>>,
}

impl Exchange {
    /// Tokens as `options` say, from a server that `fetch` reaches, for users whose logins `connections` has.
    pub fn new(options: Options, fetch: Arc<dyn Fetch>, connections: Arc<Connections>) -> Self {
        Self(Arc::new(Inner {
            options,
            fetch,
            connections,
            known: Mutex::default(),
            turns: Turns::default(),
            server: Mutex::default(),
            redeeming: Mutex::default(),
            resting: Mutex::default(),
        }))
    }

    fn user<'a>(&self, whom: &'a Principal) -> Result<&'a str, Fault> {
        whom.user().ok_or_else(|| self.0.not_connected())
    }
}

#[async_trait]
impl Credentials for Exchange {
    async fn find(&self, whom: &Principal) -> Result<Credential, Fault> {
        let (user, inner) = (self.user(whom)?, &self.0);
        let subject = inner.connections.known_subject(user).await.map_err(|fault| inner.own(fault))?;
        let subject = subject.ok_or_else(|| inner.not_connected())?;
        match inner.known(user, &subject) {
            Some(known) => inner.usable(&known),
            None => inner.got(user, None).await,
        }
    }

    async fn refused(
        &self,
        whom: &Principal,
        credential: &Credential,
        refusal: &Refusal,
    ) -> Result<Option<Credential>, Fault> {
        // Another token would not allow more.
        if refusal.status != 401 {
            return Ok(None);
        }
        let (user, inner) = (self.user(whom)?, &self.0);
        let known = inner.known.lock().get(user).cloned();
        if let Some(Known { what: What::Token { credential: current, forced }, .. }) = known
            && current.id() == credential.id()
            && forced.is_some_and(|until| Instant::now() < until)
        {
            tracing::warn!(
                backend.name = inner.options.name,
                user.id = user,
                "the backend refuses a token that was just exchanged"
            );
            return Ok(None);
        }
        inner.got(user, Some(credential.id().to_owned())).await.map(Some)
    }
}

#[async_trait]
impl Accounts for Exchange {
    async fn is_connected(&self, whom: &Principal) -> Result<bool, Fault> {
        let (Some(user), inner) = (whom.user(), &self.0) else { return Ok(false) };
        let subject = inner.connections.known_subject(user).await.map_err(|fault| inner.own(fault))?;
        let Some(subject) = subject else { return Ok(false) };
        let known = inner.known(user, &subject);
        Ok(!known.is_some_and(|known| matches!(known.what, What::Again)))
    }

    fn link(&self, whom: &Principal, name: &str) -> Option<String> {
        Some(self.0.connections.login_link(whom.user()?, &self.0.options.name, name))
    }

    fn is_by_login(&self) -> bool {
        true
    }

    fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.0.connections.login_changes()
    }
}

impl Inner {
    fn not_connected(&self) -> Fault {
        Fault::NotConnected { backend: self.options.name.clone() }
    }

    fn no_credential(&self, detail: &str) -> Fault {
        Fault::NoCredential { backend: self.options.name.clone(), detail: detail.to_owned() }
    }

    /// A fault of a login is one of this backend.
    fn own(&self, fault: Fault) -> Fault {
        match fault {
            Fault::NotConnected { .. } => self.not_connected(),
            Fault::NoCredential { detail, .. } => self.no_credential(&detail),
            other => other,
        }
    }

    /// What is known for a user who has logged in with `subject`, if it is of use.
    fn known(&self, user: &str, subject: &Subject) -> Option<Known> {
        let known = self.known.lock().get(user).cloned()?;
        let (id, version) = subject.version();
        let is_of_this = known.login.0 == id && known.login.1 == version;
        (is_of_this && Instant::now() < known.until).then_some(known)
    }

    fn usable(&self, known: &Known) -> Result<Credential, Fault> {
        match &known.what {
            What::Token { credential, .. } => Ok(credential.clone()),
            What::Again => Err(self.not_connected()),
            What::Denied => Err(Fault::NotAllowed { backend: self.options.name.clone() }),
        }
    }

    fn remember(&self, user: &str, subject: &Subject, until: Instant, what: What) -> Known {
        let (id, version) = subject.version();
        let known = Known { login: (id.to_owned(), version), until, what };
        let mut all = self.known.lock();
        if all.len() >= MAX_KNOWN {
            let now = Instant::now();
            all.retain(|_, known| now < known.until);
            if all.len() >= MAX_KNOWN {
                all.clear();
            }
        }
        all.insert(user.to_owned(), known.clone());
        known
    }

    /// A token that is not the refused one. Whoever waits may go: the work goes on.
    async fn got(self: &Arc<Self>, user: &str, refused: Option<String>) -> Result<Credential, Fault> {
        let (told, got) = tokio::sync::oneshot::channel();
        let (this, user) = (self.clone(), user.to_owned());
        self.connections.tasks().spawn("exchange a token", async move {
            // Nobody may wait any more.
            let _ = told.send(this.in_turn(&user, refused.as_deref()).await);
        });
        got.await.unwrap_or(Err(Fault::Draining))
    }

    async fn in_turn(&self, user: &str, refused: Option<&str>) -> Result<Credential, Fault> {
        let mut turn = self.turns.enter(user.to_owned());
        turn.wait().await;
        self.get(user, refused).await
    }

    async fn get(&self, user: &str, refused: Option<&str>) -> Result<Credential, Fault> {
        let mut subject = self.connections.subject(user, None).await.map_err(|fault| self.own(fault))?;
        if let Some(known) = self.known(user, &subject) {
            let is_refused =
                matches!(&known.what, What::Token { credential, .. } if Some(credential.id()) == refused);
            if !is_refused {
                return self.usable(&known);
            }
        }
        self.is_resting()?;
        let mut asked = self.ask(&subject).await;
        // What is exchanged may have been ended at the provider before its time.
        if asked.as_ref().is_err_and(Asked::is_of_login) && subject.is_renewable() && !subject.is_young() {
            let version = subject.version().1;
            subject = self.connections.subject(user, Some(version)).await.map_err(|fault| self.own(fault))?;
            asked = self.ask(&subject).await;
        }
        let known = match asked {
            Ok(exchanged) => self.keep(user, &subject, &exchanged, refused.is_some()),
            Err(why) => self.failed(user, &subject, why)?,
        };
        self.usable(&known)
    }

    fn keep(&self, user: &str, subject: &Subject, exchanged: &Exchanged, is_forced: bool) -> Known {
        *self.resting.lock() = None;
        let life = exchanged.expires_in.map_or(LONGEST, |life| life.saturating_sub(MARGIN.min(life / 2)));
        let now = Instant::now();
        let id = format!("{:016x}", rand::random::<u64>());
        tracing::debug!(
            backend.name = self.options.name,
            user.id = user,
            "a login was exchanged for a token"
        );
        let what = What::Token {
            credential: Credential::bearer(&exchanged.access, &id),
            forced: is_forced.then(|| now + FORCED_FOR),
        };
        self.remember(user, subject, now + life.min(LONGEST), what)
    }

    /// What is known after an exchange that gave nothing, or why nothing is.
    fn failed(&self, user: &str, subject: &Subject, why: Asked) -> Result<Known, Fault> {
        let name = &self.options.name;
        let until = Instant::now() + DENIED_FOR;
        match why {
            Asked::NoIdToken => Ok(self.remember(user, subject, Instant::now() + LONGEST, What::Again)),
            Asked::Refused(NoToken::Refused(code)) if code == "access_denied" => {
                tracing::info!(
                    backend.name = name,
                    user.id = user,
                    "the identity provider denies the exchange"
                );
                Ok(self.remember(user, subject, until, What::Denied))
            }
            Asked::Refused(NoToken::Refused(code)) if wants_user(&code) || code == "invalid_grant" => {
                let is_denied = subject.is_young() && code == "invalid_grant";
                tracing::info!(
                    backend.name = name,
                    user.id = user,
                    "the server does not exchange what the user has logged in with ({code})"
                );
                let what = if is_denied { What::Denied } else { What::Again };
                Ok(self.remember(user, subject, until, what))
            }
            Asked::NotTaken(NoToken::Refused(code)) if code == "access_denied" || code == "invalid_grant" => {
                tracing::warn!(
                    backend.name = name,
                    user.id = user,
                    "the backend's authorization server does not take what the identity provider says of the user ({code})"
                );
                Ok(self.remember(user, subject, until, What::Denied))
            }
            Asked::Refused(why) | Asked::NotTaken(why) => {
                let text = why.to_string();
                if matches!(why, NoToken::Refused(_)) {
                    tracing::error!(
                        backend.name = name,
                        "nobody gets a token for the backend: {text}; look at client_id, client_secret, scopes, resource and \
                         audience of its auth"
                    );
                } else {
                    tracing::warn!(backend.name = name, user.id = user, "no token for the backend: {text}");
                }
                let mut resting = self.resting.lock();
                let pause = resting.take().map_or(BACK_OFF.0, |(_, last, _)| (last * 2).min(BACK_OFF.1));
                *resting = Some((Instant::now() + pause, pause, text.clone()));
                Err(self.no_credential(&text))
            }
        }
    }

    fn is_resting(&self) -> Result<(), Fault> {
        let resting = self.resting.lock().clone();
        match resting.filter(|(until, ..)| Instant::now() < *until) {
            Some((_, _, why)) => Err(self.no_credential(&why)),
            None => Ok(()),
        }
    }

    async fn ask(&self, subject: &Subject) -> Result<Exchanged, Asked> {
        let options = &self.options;
        let id_token;
        let shown = match options.wanted.subject_token {
            SubjectToken::Access => subject.access(),
            SubjectToken::Id => {
                let kept = self.connections.id_token_of(subject);
                id_token = kept.filter(|token| is_good(token)).ok_or(Asked::NoIdToken)?;
                &id_token
            }
        };
        let server = self.server().await.map_err(|why| Asked::Refused(NoToken::Unavailable(why)))?;
        let client = client(&options.client, options.method, &server);
        let Some(redeemed) = &options.redeemed else {
            let exchanged = answer::exchange(&*self.fetch, &server, &client, shown, &options.wanted);
            return exchanged.await.map_err(Asked::Refused);
        };
        let vouched =
            answer::vouched(&*self.fetch, &server, &client, shown, &options.wanted, &redeemed.issuer);
        let assertion = vouched.await.map_err(Asked::Refused)?;
        self.redeem(redeemed, &assertion).await.map_err(Asked::NotTaken)
    }

    /// Shows an assertion to the server that the backend trusts.
    async fn redeem(&self, redeemed: &Redeemed, assertion: &str) -> Result<Exchanged, NoToken> {
        let known = self.redeeming.lock().clone();
        let server = match known {
            Some(known) => known,
            None => {
                let found = server::metadata(&*self.fetch, &redeemed.issuer).await;
                let found = found.map_err(|why| NoToken::Unavailable(why.to_string()))?;
                self.redeeming.lock().insert(found).clone()
            }
        };
        let client = client(&redeemed.client, redeemed.method, &server);
        answer::redeem(&*self.fetch, &server, &client, assertion, &self.options.wanted.scopes).await
    }

    async fn server(&self) -> Result<Metadata, String> {
        let known = self.server.lock().clone();
        let found = match (&self.options.at, known) {
            (_, Some(known)) => return Ok(known),
            (At::Endpoint(url), None) => Metadata::of_endpoint(url),
            (At::Issuer(issuer), None) => {
                server::metadata(&*self.fetch, issuer).await.map_err(|why| why.to_string())?
            }
        };
        *self.server.lock() = Some(found.clone());
        Ok(found)
    }
}

/// Why an exchange has given nothing.
enum Asked {
    /// The login has no ID token that is still good.
    NoIdToken,
    /// The server gives none.
    Refused(NoToken),
    /// The server that the backend trusts gives none for what was given.
    NotTaken(NoToken),
}

impl Asked {
    /// Whether it may be what was shown that is no good. RFC 8693 § 2.2.2 has `invalid_request` for that.
    fn is_of_login(&self) -> bool {
        match self {
            Self::NoIdToken => true,
            Self::Refused(NoToken::Refused(code)) => {
                matches!(&code[..], "invalid_grant" | "invalid_request" | "invalid_token") || wants_user(code)
            }
            Self::Refused(NoToken::Unavailable(_)) | Self::NotTaken(_) => false,
        }
    }
}

/// The gateway as a client of `server`.
fn client((id, secret): &(String, Option<Secret>), method: Method, server: &Metadata) -> ClientIdentity {
    let mut client = ClientIdentity::with_secret(id, secret.clone(), server);
    match (method, secret.clone()) {
        (Method::Basic, Some(secret)) => client.proof = ClientProof::Basic(secret),
        (Method::Post, Some(secret)) => client.proof = ClientProof::Post(secret),
        (Method::Any, _) | (_, None) => {}
    }
    client
}

/// Whether a server says that the user has to do something.
fn wants_user(code: &str) -> bool {
    matches!(code, "login_required" | "interaction_required" | "consent_required" | "invalid_token")
}

/// Whether an ID token can still be shown. Who has given it was checked when it came.
fn is_good(token: &str) -> bool {
    let end = answer::claims(token).and_then(|claims| claims.get("exp")?.as_f64());
    #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
    end.is_some_and(|end| (Utc::now().timestamp() + 10) as f64 <= end)
}
